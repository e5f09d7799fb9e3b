"""`codex-proxy connect CLIENT`: prints or changes a client's settings."""
