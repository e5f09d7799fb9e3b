"""The format of Ollama's API: parses requests, renders answers, describes models."""
