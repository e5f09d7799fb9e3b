"""The agent `codex-exec`: runs each turn with `codex exec --json`, the interface that OpenAI documents for scripts."""
