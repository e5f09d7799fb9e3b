"""The format of OpenAI's Chat Completions API: parses requests, renders answers."""
