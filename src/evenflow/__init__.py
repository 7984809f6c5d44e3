"""evenflow: even token streams while long prompts land."""
