"""The agent `claude-code`: Claude Code, by the JSON lines of `claude -p --input-format stream-json`."""
