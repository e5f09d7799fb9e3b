"""What `codex-proxy` can do beside serving: doctor, connect, chat. Part of the wiring, like `cli` and `app`."""
