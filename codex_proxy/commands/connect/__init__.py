"""`codex-proxy connect CLIENT`: prints how to configure a client, or changes its settings file."""
