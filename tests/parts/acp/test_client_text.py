"""What keeps programs that speak ACP from acting on a client's text: labels, and settings that each is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.agents.shared.history_items import PREAMBLE
from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.app.system import SystemClock
from codex_proxy.core.items import HistoryMessage, ImagePart, TextPart
from codex_proxy.parts.acp.acp_setup import launch_of, preset_variables, with_settings_file
from codex_proxy.parts.acp.content import first_prompt, later_prompt
from codex_proxy.parts.acp.presets import OPENCODE, PRESETS, QWEN, SettingsFile
from tests.http.serving import ENVIRONMENT, settings_of

COMMANDS = (
    "/help",
    "/init",
    "/usr/share/x is broken",
    "\n/help",
    " \t\r\n /help",
    "\ufeff/help",
    "\u200b/help",
    "/",
)
NO_COMMANDS = (
    "help",
    "See /help",
    "@notes.txt",
    "!ls",
    "#remember",
    "$skill",
    "1/2",
    "",
    "\\/help",
    "http://x",
)
PIXEL = ImagePart("data:image/png;base64,AAAA")


def user(*parts: TextPart | ImagePart) -> HistoryMessage:
    return HistoryMessage("user", parts)


@pytest.mark.parametrize("text", COMMANDS)
def test_a_message_that_an_agent_may_take_for_a_command_comes_with_a_label(text: str) -> None:
    for prompt in (
        later_prompt([user(TextPart(text))]),
        later_prompt([user(TextPart("See:"), TextPart(text))]),
        later_prompt([user(PIXEL, TextPart(text))]),
        later_prompt([user(TextPart(text)), HistoryMessage("developer", (TextPart("Be brief."),))]),
        first_prompt(
            [HistoryMessage("developer", (TextPart("Be brief."),)), user(TextPart(text))], takes_system=True
        ),
    ):
        assert prompt.blocks[0]["text"].startswith(PREAMBLE)
        assert f"\n{text}" in prompt.blocks[0]["text"], "and is what the client wrote"
        assert not any(each["text"].lstrip().startswith("/") for each in prompt.blocks if "text" in each)


@pytest.mark.parametrize("text", NO_COMMANDS)
def test_every_other_message_is_sent_as_it_is(text: str) -> None:
    assert later_prompt([user(TextPart(text))]).blocks == [{"type": "text", "text": text}]


def test_a_megabyte_of_blanks_takes_no_time() -> None:
    text = " " * (1 << 20) + "x"
    assert later_prompt([user(TextPart(text))]).blocks == [{"type": "text", "text": text}]


def test_what_the_user_has_set_for_opencode_stays_but_for_what_a_preset_sets() -> None:
    theirs = {"model": "m", "agent": {"title": {"model": "t"}, "build": {"prompt": "p"}}, "share": "auto"}
    found = preset_variables(OPENCODE.env, {"OPENCODE_CONFIG_CONTENT": json.dumps(theirs)})
    config = json.loads(found["OPENCODE_CONFIG_CONTENT"])
    assert config["agent"] == {"title": {"model": "t", "disable": True}, "build": {"prompt": "p"}}
    assert (config["model"], config["share"], config["permission"]["bash"]) == ("m", "disabled", "ask")


def context_of(folder: Path, acp: dict[str, str] | None = None, **more: str) -> AgentContext:
    settings = settings_of(folder, agent="qwen", state_dir=folder / "state", acp=acp or {})
    return AgentContext(settings, {**ENVIRONMENT, **more}, SystemClock())


def settings_given(context: AgentContext) -> Any:
    launch = with_settings_file(launch_of(QWEN, context), context)
    return json.loads(Path(launch.command.env["QWEN_CODE_SYSTEM_SETTINGS_PATH"]).read_text())


def test_qwen_is_given_settings_without_a_memory_and_the_users_own_are_not_touched(tmp_path: Path) -> None:
    given = settings_given(context_of(tmp_path))
    assert given["memory"]["enableManagedAutoMemory"] is False
    assert given["ui"] == {"enableFollowupSuggestions": False}
    assert [file.name for file in tmp_path.rglob("*.json")] == ["qwen.json"]


def test_what_the_machines_administrator_has_set_stays_in_force(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text('{"memory": {"enableManagedAutoMemory": true, "x": 1}, "tools": {"exclude": ["y"]}}')
    given = settings_given(context_of(tmp_path, QWEN_CODE_SYSTEM_SETTINGS_PATH=str(policy)))
    assert given["tools"] == {"exclude": ["y"]}
    assert (given["memory"]["x"], given["memory"]["enableManagedAutoMemory"]) == (1, False)


def test_a_settings_file_that_the_operator_names_for_the_agent_is_its_settings_file(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    context = context_of(
        tmp_path, QWEN_CODE_SYSTEM_SETTINGS_PATH=str(policy), acp={"env": "QWEN_CODE_SYSTEM_SETTINGS_PATH"}
    )
    launch = with_settings_file(launch_of(QWEN, context), context)
    assert launch.command.env["QWEN_CODE_SYSTEM_SETTINGS_PATH"] == str(policy)
    assert list(tmp_path.rglob("*.json")) == []


def test_settings_of_the_machine_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text("{ // a comment")
    with pytest.raises(NoAgentError, match="cannot be joined"):
        settings_given(context_of(tmp_path, QWEN_CODE_SYSTEM_SETTINGS_PATH=str(policy)))


def test_a_settings_file_is_given_only_where_a_program_takes_its_settings_from_one() -> None:
    files = {name: preset.settings_file for name, preset in PRESETS.items() if preset.settings_file}
    assert set(files) == {"gemini", "qwen"}
    assert all(isinstance(file, SettingsFile) and file.path.startswith("/etc/") for file in files.values())
