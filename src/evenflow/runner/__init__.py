"""What computes a step: the protocol, the flat batch, and the runners."""
