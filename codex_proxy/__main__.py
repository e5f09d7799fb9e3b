"""Runs the command `codex-proxy` when Python is started with `python -m codex_proxy`."""

from codex_proxy.cli import main

main(prog_name="codex-proxy")
