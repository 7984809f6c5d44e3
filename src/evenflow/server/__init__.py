"""The OpenAI-compatible server: requests in over HTTP, token streams out; built on `LLM`."""
