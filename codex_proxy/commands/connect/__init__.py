"""`codex-proxy connect CLIENT`: what to put where, so that a client finds this server."""
