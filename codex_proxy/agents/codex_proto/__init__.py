"""The agent `codex-proto`: `codex proto`, JSON lines both ways, one process per turn. Codex up to 0.4x; the fake."""
