"""`codex-proxy chat`: a chat in the terminal with a running server."""
