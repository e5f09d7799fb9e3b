"""The agent `claude-code`: drives Claude Code by the JSON lines of `claude -p --input-format stream-json`."""
