"""`codex-proxy connect CLIENT`: shows how to configure a client for this server, or does it."""
