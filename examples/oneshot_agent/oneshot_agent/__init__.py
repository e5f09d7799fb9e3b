"""An agent of codex-proxy for any program that reads a prompt from stdin to its end and prints its answer."""
