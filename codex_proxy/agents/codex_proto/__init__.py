"""The agent `codex-proto`: drives older releases of Codex by the JSON lines of `codex proto`."""
