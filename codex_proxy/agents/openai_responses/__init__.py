"""The agent `openai-responses`: any server that speaks the Responses API."""
