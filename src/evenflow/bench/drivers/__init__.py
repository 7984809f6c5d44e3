"""Ways to a server: over HTTP, or in this process."""
