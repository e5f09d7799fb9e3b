"""Which keys answer a question in codex-proxy chat, and which are typed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from codex_proxy.parts.terminal import prompt as module
from codex_proxy.parts.terminal.prompt import Prompt

CTRL_D, CTRL_U = "\x04", "\x15"


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as keyboard, create_app_session(input=keyboard, output=DummyOutput()):
        yield keyboard


def asking_prompt(answers: list[str]) -> Prompt:
    """A prompt with a question, whose answers go into the list."""
    return Prompt(
        InMemoryHistory(),
        {},
        live=lambda: (),
        asking=lambda: ("a allow once", "as"),
        status=lambda: "",
        on_key=answers.append,
        on_interrupt=lambda: None,
    )


async def test_after_a_pause_what_goes_on_being_typed_answers_nothing(
    keyboard: PipeInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.0)  # each key comes after a pause
    answers: list[str] = []
    keyboard.send_text("also this\r")
    assert await asking_prompt(answers).read("say ") == "say also this"
    assert answers == []


async def test_a_key_on_a_line_that_was_cleared_answers(
    keyboard: PipeInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.0)
    answers: list[str] = []
    keyboard.send_text(f"so{CTRL_U}a{CTRL_D}")
    with pytest.raises(EOFError):
        await asking_prompt(answers).read("say ")
    assert answers == ["a"]


async def test_what_was_typed_while_nothing_was_read_answers_nothing(keyboard: PipeInput) -> None:
    answers: list[str] = []
    keyboard.send_text(f"a{CTRL_D}")
    with pytest.raises(EOFError):
        await asking_prompt(answers).read()
    assert answers == []
