"""The agent `codex-exec`: Codex, by `codex exec --json`, the interface that OpenAI documents for scripts."""
