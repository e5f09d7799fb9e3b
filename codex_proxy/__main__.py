"""The command `codex-proxy`, also for `python -m codex_proxy`."""

import gc


def main() -> None:
    """Runs the command that the arguments name, and ends the process with its exit status."""
    gc.disable()  # what is imported stays: looking at it again and again takes a fourteenth of the time
    from codex_proxy.cli import main as run_command

    gc.enable()
    run_command(prog_name="codex-proxy")


if __name__ == "__main__":
    main()
