"""`python -m codex_proxy` is `codex-proxy`."""

from codex_proxy.cli import main

main(prog_name="codex-proxy")
