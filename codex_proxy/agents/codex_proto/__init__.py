"""The agent `codex-proto`: older releases of Codex, driven by the JSON lines of `codex proto`."""
