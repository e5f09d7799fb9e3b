"""What `codex exec` is started with, and which releases have what that takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from codex_proxy.agents.codex.confined_reads import ConfinedReads
from codex_proxy.agents.codex.sandbox_config import Profiles
from codex_proxy.agents.codex_exec.agent import CodexExecAgent, TurnFiles
from codex_proxy.agents.codex_exec.dialect import CodexExec
from codex_proxy.agents.codex_exec.launch import NEEDED_OPTIONS, exec_argv, missing_options
from codex_proxy.agents.processes.child_per_turn import ChildSpec
from codex_proxy.core.turn import Turn
from codex_proxy.process.child import Command

HELP = """Run Codex non-interactively

Options:
  -i, --image <FILE>...
          Optional image(s), for which --ephemeral is not needed
  -m, --model <MODEL>
  -s, --sandbox <SANDBOX_MODE>
      --skip-git-repo-check
      --ephemeral
      --output-schema <FILE>
      --json
"""


def test_with_every_option_in_the_help_none_is_missing() -> None:
    assert missing_options(HELP) == ()


@pytest.mark.parametrize("option", NEEDED_OPTIONS)
def test_an_option_that_is_not_listed_is_named(option: str) -> None:
    without = "\n".join(
        row for row in HELP.splitlines() if f"{option} " not in row + " " or "for which" in row
    )
    assert missing_options(without) == (option,)


def test_a_help_that_is_none_lacks_everything() -> None:
    assert missing_options("") == NEEDED_OPTIONS


def test_the_prompt_is_read_from_stdin_and_nothing_of_it_is_an_argument() -> None:
    argv = exec_argv("/codex", Turn(model="", history=()), [("analytics.enabled", "false")])
    assert argv == (
        *("/codex", "exec", "--json", "--ephemeral", "--skip-git-repo-check"),
        *("--sandbox", "read-only", "-c", "analytics.enabled=false", "-"),
    )


def test_the_wishes_of_a_request_win_over_the_settings_of_the_process() -> None:
    turn = Turn(
        model="m",
        history=(),
        effort="low",
        summary="auto",
        verbosity="low",
        service_tier="flex",
        web_search=True,
    )
    argv = exec_argv("codex", turn, [("web_search", '"disabled"')], schema="/s.json")
    assert argv[argv.index("--model") + 1] == "m"
    assert argv[argv.index("--output-schema") + 1] == "/s.json"
    values = [argv[place + 1] for place, word in enumerate(argv) if word == "-c"]
    assert values[0] == 'web_search="disabled"'
    assert sorted(values[1:]) == [
        'model_reasoning_effort="low"',
        'model_reasoning_summary="auto"',
        'model_verbosity="low"',
        'service_tier="flex"',
        'web_search="live"',
    ]


def test_images_stand_before_another_option_so_that_they_end_there() -> None:
    argv = exec_argv("codex", Turn(model="", history=()), [], images=["/a.png", "/b.png"])
    assert argv[2:7] == ("--image", "/a.png", "--image", "/b.png", "--json")


def test_a_permission_profile_takes_the_place_of_the_sandbox() -> None:
    argv = exec_argv(
        "codex", Turn(model="", history=(), permissions="p_read"), [("default_permissions", '"x"')]
    )
    assert "--sandbox" not in argv
    assert argv[-3:] == ("-c", 'default_permissions="p_read"', "-")


@pytest.mark.parametrize(
    ("mode", "sandbox"),
    [("agent", "workspace-write"), ("agent", "read-only"), ("model", "danger-full-access")],
)
def test_the_sandbox_is_that_of_the_turn_and_a_plain_model_never_writes(mode: str, sandbox: str) -> None:
    turn = Turn(model="", history=(), mode=mode, sandbox=sandbox)  # type: ignore[arg-type]
    argv = exec_argv("codex", turn, [])
    assert argv[argv.index("--sandbox") + 1] == (sandbox if mode == "agent" else "read-only")


@pytest.mark.parametrize("can", [True, False])
async def test_reads_are_confined_by_a_profile_only_where_the_program_can(can: bool, tmp_path: Path) -> None:
    asked: list[str | None] = []

    def command(turn: Turn, files: TurnFiles | None = None) -> Command:
        asked.append(turn.permissions)
        return Command(("/bin/cat",), {}, str(tmp_path))

    spec = ChildSpec("codex-exec", "1", command, CodexExec, frozenset(), (), any_model=True)
    program = "/bin/true" if can else "/bin/false"
    reads = ConfinedReads(program, Profiles("p", ("/hidden",)), {})
    agent = CodexExecAgent(spec, command, str(tmp_path), reads)
    session = await agent.open(Turn(model="", history=(), mode="agent", confine_reads=True))
    await agent.release(session, finished=True)
    await agent.close()
    assert asked[0] == ("p_read" if can else None)
