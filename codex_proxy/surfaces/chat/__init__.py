"""Chat Completions: parse and render."""
