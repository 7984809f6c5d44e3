"""What to send and when: drawn, read from a trace, or read back from an earlier run."""
