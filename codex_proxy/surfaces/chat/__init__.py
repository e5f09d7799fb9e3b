"""The wire format of Chat Completions."""
