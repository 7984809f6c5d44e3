"""`evenflow bench kernels`: what the native runner reaches of what the machine allows."""
