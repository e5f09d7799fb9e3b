"""The agent `codex-app-server`: its JSON-RPC dialect (pure), and the pool of processes that speak it."""
