"""The agent `codex-app-server`: its dialect (JSON-RPC, without IO), and the pool of `codex app-server` processes."""
