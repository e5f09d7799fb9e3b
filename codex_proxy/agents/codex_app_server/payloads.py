"""The shapes inside the agent's messages: what an answer, an error or a count of tokens holds."""

from __future__ import annotations

import msgspec

from codex_proxy.agents.codex_app_server.messages import UNREADABLE, RpcError
from codex_proxy.agents.failures import failure_from_text, stop_from_text
from codex_proxy.core.events import Stop, TurnEnded, Usage
from codex_proxy.core.faults import Failure, FaultKind


class TurnError(msgspec.Struct, frozen=True, rename="camel"):
    message: str = ""
    codex_error_info: msgspec.Raw = msgspec.Raw()
    additional_details: str | None = None


class TurnPayload(msgspec.Struct, frozen=True):
    id: str = ""
    status: str = ""
    error: TurnError | None = None


class TurnHead(msgspec.Struct, frozen=True):
    id: str


class TurnStartResult(msgspec.Struct, frozen=True):
    turn: TurnHead


class ThreadHead(msgspec.Struct, frozen=True):
    """A thread has a `status` as a turn has, but of another shape."""

    id: str


class ThreadStartResult(msgspec.Struct, frozen=True):
    thread: ThreadHead
    model: str | None = None


class Tokens(msgspec.Struct, frozen=True, rename="camel"):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0

    def usage(self) -> Usage:
        return Usage(
            self.input_tokens, self.cached_input_tokens, self.output_tokens, self.reasoning_output_tokens
        )


def decode_usage(tokens: msgspec.Raw) -> Usage | None:
    """The usage that the agent told of a model call; None where it told none (or not in numbers)."""
    try:
        tokens_or_none = msgspec.json.decode(tokens, type=Tokens | None) if tokens else None
    except UNREADABLE:
        return None
    return tokens_or_none.usage() if tokens_or_none is not None else None


class ThreadTokenUsage(msgspec.Struct, frozen=True):
    total: Tokens


class TurnUsage:
    """The tokens of a client's turn, of which a thread may serve several."""

    def __init__(self) -> None:
        self.total = Usage()
        self.from_provider = False
        """The turn's newest tokens were told with a response of the model's provider, and by nobody else."""
        self._earlier_turns = Usage()
        """Of earlier turns on the same thread, whose sum the agent reports."""

    def start_turn(self) -> None:
        self._earlier_turns += self.total
        self.total = Usage()
        self.from_provider = False

    def add_call(self, usage: Usage) -> None:
        """Tokens of one model call, as its provider counted them."""
        self.total += usage
        self.from_provider = True

    def set_thread_total(self, total: Usage) -> bool:
        """What the agent says of the whole thread; True where that is more than its model calls said one by one."""
        turn_total = total - self._earlier_turns
        turn_total = Usage(*(max(0, tokens) for tokens in msgspec.structs.astuple(turn_total)))
        if turn_total.input + turn_total.output <= self.total.input + self.total.output:
            return False
        self.total = turn_total
        return True


class RawItemHead(msgspec.Struct, frozen=True):
    """What any raw item may have."""

    type: str = ""
    id: str | None = None
    role: str | None = None


class RawItemPart(msgspec.Struct, frozen=True):
    text: str | None = None


class ReadableRawItem(RawItemHead, frozen=True):
    """All that is read of a raw item after it was kept: one whose fields are of other types is not kept."""

    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[RawItemPart] | None = None
    encrypted_content: str | None = None


def check_readable(item: msgspec.Raw) -> None:
    """Raises one of UNREADABLE where a raw item, or what is read of it later, could not be read again."""
    msgspec.convert(msgspec.json.decode(item), ReadableRawItem)


class RawItemCall(msgspec.Struct, frozen=True):
    """A call of the model's, or (by its id) the output of one."""

    call_id: str
    name: str = ""
    arguments: str = ""
    input: str = ""


def error_kind(info: msgspec.Raw) -> tuple[str | None, int | None]:
    """`codexErrorInfo`: a word, or a word with an HTTP status. Anything else is (None, None)."""
    if not info or info == b"null":
        return None, None
    value = msgspec.json.decode(info)
    if isinstance(value, str):
        return value, None
    if isinstance(value, dict) and value:
        kind, detail = next(iter(value.items()))
        status = detail.get("httpStatusCode") if isinstance(detail, dict) else None
        return kind, status if isinstance(status, int) else None
    return None, None


def command_text(value: msgspec.Raw) -> str:
    """A command as one line: the agent gives a text, or a list of words."""
    decoded = msgspec.json.decode(value) if value else ""
    if isinstance(decoded, list):
        decoded = " ".join(str(word) for word in decoded)
    return " ".join(str(decoded or "").split())


CLIENT_ERROR_TEXTS = ("not a valid response item", "image URLs are not supported")
"""Words of refusals for which another request is the only way out."""

BAD_TOOL_TEXT = "dynamic tool "
"""How the agent begins to say what it has against a tool: its schema, since its name was mapped."""

OVERLOADED, INPUT_TOO_LARGE = -32001, -32602


def failure_of_error(what: str, error: RpcError) -> Failure:
    """Why the agent would not do `what` (a verb phrase), by the error that answered our request."""
    failure = failure_from_text(error.message)
    if error.message.startswith(BAD_TOOL_TEXT):
        reason = failure.message[max(failure.message.find(BAD_TOOL_TEXT), 0) :]
        return Failure(
            kind=FaultKind.INVALID_REQUEST,
            message=f"The agent does not take a tool of this request: {reason}",
            param="tools",
            code="invalid_tool_schema",
        )
    if error.code == INPUT_TOO_LARGE or any(words in error.message for words in CLIENT_ERROR_TEXTS):
        return Failure(kind=FaultKind.REJECTED_BY_PROVIDER, message=failure.message)
    if error.code == OVERLOADED:
        return Failure(
            kind=FaultKind.UNAVAILABLE, message="The agent is overloaded. Try again.", retry_after=1
        )
    if failure.kind is FaultKind.UPSTREAM_ERROR:
        return Failure(
            kind=FaultKind.AGENT_MISCONFIGURED, message=f"The agent would not {what}: {failure.message}"
        )
    return failure


def failed_end(error: TurnError | None) -> TurnEnded:
    """The end of a turn by an error of the agent's. Some are none: a text that was cut, for the provider's reasons."""
    if error is None:
        return TurnEnded(Stop.FAILED)
    details = error.additional_details
    stop = stop_from_text(details or error.message) or stop_from_text(error.message)
    if stop is not None:
        return TurnEnded(stop, "provider")
    kind, status = error_kind(error.codex_error_info)
    failure = failure_from_text(error.message, kind=kind, http_status=status, details=details)
    return TurnEnded(Stop.FAILED, "provider", failure)


def turn_end(turn: TurnPayload) -> TurnEnded:
    """What the end of the agent's turn means."""
    if turn.status == "completed":
        return TurnEnded(Stop.STOP)
    return TurnEnded(Stop.INTERRUPTED) if turn.status == "interrupted" else failed_end(turn.error)
