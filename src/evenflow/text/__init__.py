"""Between characters and token ids."""
