"""Asks the program for its answer to `initialize`, in a process that does nothing else."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from codex_proxy.agents.dialects.failures import describe_end
from codex_proxy.agents.dialects.json_lines import UnreadableError, decode_part
from codex_proxy.agents.processes.session import LineFramer, LineTooLong, ended_from
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import misconfigured
from codex_proxy.parts.claude_code.messages import (
    ControlResponse,
    Message,
    control_request,
    decode,
    user_line,
)
from codex_proxy.process.child import Command, Exit, spawn

START_SECONDS: Final = 30.0
"""Maximum seconds until the answer to `initialize`; 0.4 are usual, ten times that on a busy machine."""
NO_SIGN_IN: Final = ("none", "", None)


class InitializeResult(msgspec.Struct, frozen=True):
    models: tuple[AgentModel, ...] = ()
    signed_in: bool = True
    account: str = ""
    """The kind of sign-in."""
    takes_mark: bool = True
    """Whether the program did not run a command in a marked text (see `user_line`)."""


class _Model(msgspec.Struct, frozen=True):
    value: str = ""
    displayName: str = ""
    supportedEffortLevels: list[str] = []


class _Account(msgspec.Struct, frozen=True):
    tokenSource: str | None = None
    apiKeySource: str | None = None
    apiProvider: str | None = None
    email: str | None = None
    subscriptionType: str | None = None


class _InitializeResponse(msgspec.Struct, frozen=True):
    models: list[_Model] = []
    account: _Account | None = None


def initialize_result_of(response: msgspec.Raw) -> InitializeResult:
    """Reads the result of `initialize`. Raises `UnreadableError`."""
    told = decode_part(response, _InitializeResponse)
    models = tuple(
        AgentModel(
            id=model.value,
            display_name=model.displayName,
            input_modalities=("text", "image"),
            efforts=tuple(model.supportedEffortLevels),
            is_default=model.value == "default",
            owned_by="anthropic",
        )
        for model in told.models
        if model.value
    )
    account = told.account
    if account is None:
        return InitializeResult(models)
    by = [each for each in (account.subscriptionType, account.tokenSource, account.apiKeySource) if each]
    named = [each for each in by if each not in NO_SIGN_IN]
    other_provider = account.apiProvider not in (None, "firstParty")
    signed_in = bool(named or account.email or other_provider)
    return InitializeResult(models, signed_in, named[0] if named else account.apiProvider or "")


class _InitializeReader:
    """Reads output until `initialize` and a marked command are answered. Then `answer` is done; it raises `Fault` if
    the process ends before.
    """

    def __init__(self) -> None:
        self.answer: asyncio.Future[ControlResponse] = asyncio.get_running_loop().create_future()
        self.ran_command = False
        self._response: ControlResponse | None = None
        self._framer = LineFramer()

    def on_output(self, chunk: bytes) -> None:
        try:
            lines = self._framer.feed(chunk)
        except LineTooLong:
            return  # nothing can be read any more; the wait for the answer has a limit
        for line in lines:
            try:
                self._read(decode(line))
            except UnreadableError:
                continue

    def _read(self, message: Message) -> None:
        if message.type == "control_response" and self._response is None:
            self._response = decode_part(message.response, ControlResponse)
        self.ran_command = self.ran_command or message.type == "assistant"
        if message.type == "result" and self._response is not None and not self.answer.done():
            self.answer.set_result(self._response)

    def on_end(self, exit: Exit) -> None:
        if not self.answer.done():
            said = describe_end(ended_from(exit))
            self.answer.set_exception(misconfigured(f"Claude Code ended while it was starting{said}"))


async def request_initialize(command: Command) -> InitializeResult:
    """Starts a process, and returns its answers to `initialize` and to a command marked as text: a release that does
    not know the mark answers without its model. Raises `Fault`.
    """
    question = _InitializeReader()
    child = await spawn(command, question)
    child.write(control_request("greeting", "initialize", hooks=None))
    child.write(user_line([{"type": "text", "text": "/help"}], query=False))
    try:
        async with asyncio.timeout(START_SECONDS):
            response = await question.answer
        initialized = initialize_result_of(response.response or msgspec.Raw(b"{}"))
        return msgspec.structs.replace(initialized, takes_mark=not question.ran_command)
    except TimeoutError:
        raise misconfigured(f"Claude Code did not answer within {START_SECONDS:g} s of starting.") from None
    except UnreadableError:
        raise misconfigured("Claude Code's answer to initialize is invalid.") from None
    finally:
        await child.end(grace=0)
