"""`codex-proxy chat`: a small chat in the terminal with a server that runs."""
