"""The commands of `codex-proxy`."""
