"""The JSON-RPC connection to one process, without IO. Each session has a *channel*: its request ids are
`<channel>.<n>`, and its thread belongs to it. Channel 0 is the connection's own.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from codex_proxy import __version__
from codex_proxy.agents.codex_app_server.children import ITEM_METHODS, children_named
from codex_proxy.agents.codex_app_server.wire import (
    NO_PARAMS,
    Message,
    ThreadStartResult,
    count_requests,
    decode,
    decode_strictly,
    notification,
    refusal,
    request,
)
from codex_proxy.agents.dialect import ReceivedMessages
from codex_proxy.agents.shared.json_lines import OF_NOBODY, divided, why_lost
from codex_proxy.core.json_values import LONG_JSON, UNREADABLE

CLIENT_NAME = "codex_openai_proxy"

MAX_IN_FLIGHT = 64
"""Maximum unanswered requests; from about 400 on Codex loses some."""

MAX_CHANNEL_DIGITS = 18
"""Maximum digits of the channel in an answer's id; others are invalid."""

INITIALIZE, ACCOUNT, LIMITS = "0.1", "0.2", "0.3"


OPT_OUT_NOTIFICATIONS: Final = (
    "thread/started",  # the answer to thread/start says the same
    "thread/status/changed",  # twice per turn; turn/completed says the same
    "thread/readState/changed",
    "thread/settings/updated",
    "thread/name/updated",
    "thread/goal/updated",
    "thread/goal/cleared",
    "thread/queue/changed",
    "thread/prediction/updated",
    "turn/diff/updated",  # the whole diff again after every change
    "item/plan/delta",  # plan mode only, which we never enter
    "item/commandExecution/terminalInteraction",
    "item/fileChange/outputDelta",
    "item/fileChange/patchUpdated",
    "item/mcpToolCall/progress",
    "hook/started",
    "hook/completed",
    "serverRequest/resolved",  # the answer was ours
    "mcpServer/startupStatus/updated",
    "remoteControl/status/changed",
    "skills/changed",
    "app/list/updated",
)


def initialize_params(client_name: str, version: str) -> dict[str, Any]:
    """Returns the parameters; Codex sends `client_name` as `originator`."""
    return {
        "clientInfo": {"name": client_name, "title": client_name, "version": version},
        "capabilities": {
            # dynamicTools, environments and experimentalRawEvents are refused without it
            "experimentalApi": True,
            "requestAttestation": False,
            "optOutNotificationMethods": list(OPT_OUT_NOTIFICATIONS),
        },
    }


class _AccountResult(msgspec.Struct, frozen=True, rename="camel"):
    account: msgspec.Raw | None = None
    requires_openai_auth: bool = False


class _InitializeResult(msgspec.Struct, frozen=True, rename="camel"):
    user_agent: str = ""


class AppServerConnection:
    """The connection. `ready`: the process has answered `initialize` and who is signed in. `fault`: why it cannot be
    used.
    """

    def __init__(self) -> None:
        self.ready = False
        self.fault: str | None = None
        self.user_agent = ""
        self.signed_in = True
        """False if the provider needs a sign-in and there is none."""
        self._new_limits: bytes | None = None
        self._last_channel = 0
        self._threads: dict[str, int] = {}
        self._thread_of: dict[int, str] = {}
        self._children_of: dict[int, list[str]] = {}
        """The threads of each channel's subagents."""
        self._unanswered: dict[int, int] = {}
        self._in_flight = 0
        self._held_writes: deque[tuple[int, bytes]] = deque()
        """Channels and writes that wait until fewer requests are in flight."""

    def open(self) -> bytes:
        return request(INITIALIZE, "initialize", initialize_params(CLIENT_NAME, __version__))

    def account_request(self) -> bytes:
        """Returns the line that asks who is signed in. The answer sets `signed_in`."""
        return request(ACCOUNT, "account/read", {})

    def limits_request(self) -> bytes:
        """Returns the line that asks for the account's limits. The answer is in `ReceivedMessages.limits`."""
        return request(LIMITS, "account/rateLimits/read", None)

    # --- channels -------------------------------------------------------------------------------

    def open_channel(self) -> int:
        self._last_channel += 1
        self._unanswered[self._last_channel] = 0
        return self._last_channel

    def close_channel(self, channel: int) -> bytes:
        """Closes a channel, and returns held writes of others that can now be written."""
        self._in_flight -= self._unanswered.pop(channel, 0)
        thread = self._thread_of.pop(channel, None)
        if thread is not None and self._threads.get(thread) == channel:
            del self._threads[thread]
        for child in self._children_of.pop(channel, ()):
            self._threads.pop(child, None)
        if self._held_writes:
            self._held_writes = deque(each for each in self._held_writes if each[0] != channel)
        return self._release_held()

    def send(self, channel: int, writes: bytes) -> bytes:
        """Returns what to write now. Beyond `MAX_IN_FLIGHT` requests writes are held, and returned by `receive` or
        `close_channel`.
        """
        requests = count_requests(writes)
        if requests and (self._held_writes or self._in_flight + requests > MAX_IN_FLIGHT):
            self._held_writes.append((channel, writes))
            return self._release_held()
        return self._count_sent(channel, requests, writes)

    def _count_sent(self, channel: int, requests: int, writes: bytes) -> bytes:
        if channel in self._unanswered:  # answers to a closed channel are not counted either
            self._unanswered[channel] += requests
            self._in_flight += requests
        return writes

    def _release_held(self) -> bytes:
        out = []
        while self._held_writes:
            channel, writes = self._held_writes[0]
            requests = count_requests(writes)
            if self._in_flight and self._in_flight + requests > MAX_IN_FLIGHT:
                break
            self._held_writes.popleft()
            out.append(self._count_sent(channel, requests, writes))
        return b"".join(out)

    # --- received messages ----------------------------------------------------------------------

    def receive(self, lines: Sequence[bytes]) -> ReceivedMessages:
        """Decodes lines and sorts their messages by channel. The result also has bytes to write: refusals of requests
        that belong to no channel, and writes that were held.
        """
        by_channel: dict[int, list[Message]] = {}
        writes: list[bytes] = []
        lost = ""
        # Most lines are notifications of the same thread as the line before: they need only be decoded.
        last_thread: str | None = None
        same: list[Message] = []
        for line in divided(lines):
            try:
                message = decode_strictly(line) if len(line) <= LONG_JSON else decode(line)
            except UNREADABLE:
                message = decode(line)
            if message is None:
                lost = why_lost(line) or lost
                continue
            thread = None if message.method is None else message.params.thread_id
            if thread is None or thread != last_thread:
                channel = self._channel_of(message, writes)
                if channel is None:
                    if _is_lost(message):
                        lost = why_lost(line, otherwise=OF_NOBODY)
                    continue
                last_thread, same = thread, by_channel.setdefault(channel, [])
            same.append(message)
            if message.method in ITEM_METHODS and (named := children_named(message)):
                self._bind_children(thread, named)
        if self._held_writes:
            writes.append(self._release_held())
        limits, self._new_limits = self._new_limits, None
        return ReceivedMessages(b"".join(writes), list(by_channel.items()), limits, lost)

    def _channel_of(self, message: Message, writes: list[bytes]) -> int | None:
        if message.method is None:
            if message.id is not None and message.params is not NO_PARAMS:  # a request without a method
                writes.append(refusal(message.id))
                return None
            return self._channel_of_answer(message, writes)
        thread = message.params.thread_id
        if thread is not None:
            channel = self._threads.get(thread)
            if channel is not None:
                return channel
        if message.id is not None:
            writes.append(refusal(message.id))
        elif message.method == "account/updated":
            writes.append(self.account_request())
        elif message.method == "account/rateLimits/updated":
            self._new_limits = bytes(message.params.rate_limits)
        return None

    def _channel_of_answer(self, message: Message, writes: list[bytes]) -> int | None:
        head = message.id.partition(".")[0] if isinstance(message.id, str) else ""
        if not (head.isascii() and head.isdigit() and len(head) <= MAX_CHANNEL_DIGITS):
            return None
        channel = int(head)
        if channel == 0:
            writes.append(self._handle_own_answer(message))
            return None
        if channel not in self._unanswered:
            return None
        if self._unanswered[channel] > 0:
            self._unanswered[channel] -= 1
            self._in_flight -= 1
        if message.id == f"{channel}.1":
            self._bind_thread(channel, message)
        return channel

    def _bind_thread(self, channel: int, message: Message) -> None:
        if channel in self._thread_of:
            return
        try:
            thread = msgspec.json.decode(message.result or b"{}", type=ThreadStartResult).thread.id
        except UNREADABLE:
            return
        if thread:
            self._threads[thread] = channel
            self._thread_of[channel] = thread

    def _bind_children(self, parent: str | None, children: Sequence[str]) -> None:
        """Has the messages of a thread's subagents go where its own go."""
        channel = self._threads.get(parent or "")
        for child in children:
            if channel is not None and child not in self._threads:
                self._threads[child] = channel
                self._children_of.setdefault(channel, []).append(child)

    def _handle_own_answer(self, message: Message) -> bytes:
        result, refused = message.result or b"{}", message.error
        if message.id == INITIALIZE:
            if refused is not None:
                self.fault = f"the agent refused to start: {refused.message}"
                return b""
            try:
                self.user_agent = msgspec.json.decode(result, type=_InitializeResult).user_agent
            except UNREADABLE as error:
                self.fault = f"the agent's answer to initialize is invalid: {error}"
                return b""
            return notification("initialized") + self.account_request()
        if message.id == ACCOUNT:
            self.ready = True  # also if it is unknown: the first turn will show whether somebody is signed in
            if refused is None:
                with contextlib.suppress(*UNREADABLE):
                    account = msgspec.json.decode(result, type=_AccountResult)
                    nobody = account.account is None or account.account == b"null"
                    self.signed_in = not (nobody and account.requires_openai_auth)
        elif message.id == LIMITS:
            self._new_limits = bytes(result) if refused is None else b""
        return b""


OF_TURNS: Final = ("item/", "turn/", "rawResponse", "error")
"""How the methods begin of what the turn of a thread cannot miss."""


def _is_lost(message: Message) -> bool:
    """Whether some turn misses the message, which does not say which: an answer without an id, an item of no thread."""
    if message.id is not None:
        return False
    if message.method is None:
        return message.error is not None or bool(message.result) or message.params is not NO_PARAMS
    return message.params.thread_id is None and (not message.method or message.method.startswith(OF_TURNS))
