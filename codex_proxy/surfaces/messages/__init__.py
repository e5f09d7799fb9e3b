"""The format of Anthropic's Messages API: parses requests, renders answers."""
