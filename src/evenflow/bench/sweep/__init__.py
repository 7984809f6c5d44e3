"""The experiments that answer the questions about chunked prefill, each as one command."""
