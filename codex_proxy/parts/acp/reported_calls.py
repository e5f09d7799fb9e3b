"""The client's tools as tools of an MCP server, and their calls in an agent's reports. Agents prefix names, each in
another way, and many change long or unusual ones: such a tool gets a generated name. Each call has an id by the
protocol; some programs leave ids out, share them between calls, or give them again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from codex_proxy.agents.dialect import TooMuchHeld
from codex_proxy.agents.shared.conversions import WHOLE_OUTPUTS, mcp_content, mcp_tool
from codex_proxy.agents.shared.tool_schemas import declares, object_parameters, plain_parameters
from codex_proxy.core.items import Part, Tool
from codex_proxy.core.json_values import encode_json, object_at, objects_in, text_at, value_at
from codex_proxy.core.tool_names import generated_name
from codex_proxy.parts.acp.messages import Update

SERVER: Final = "client"

PLAIN_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
"""Names that every agent passes on unchanged."""
RENAMED_PREFIX: Final = "tool_"
"""The prefix of generated names. A client's name with it is replaced, too."""

CALLED_BY_META: Final = ("toolName", "claudeCode", "is_mcp_tool_call")
ACTING_KINDS: Final[Mapping[str, Literal["command", "file_change"]]] = {
    "execute": "command",
    "edit": "file_change",
    "delete": "file_change",
    "move": "file_change",
}
"""ACP's kinds of tool calls that run a command or change a file. Calls of the client's tools never have these kinds,
except in Codex's adapter.
"""


def agent_name(name: str) -> str:
    """Returns the tool's own name if every agent accepts it, else a generated one."""
    if PLAIN_NAME.fullmatch(name) and not name.startswith(RENAMED_PREFIX):
        return name
    return generated_name(name, RENAMED_PREFIX, kept=20, digits=12)


def tool_entry(tool: Tool, *, for_claude: bool = False) -> dict[str, Any]:
    schema = plain_parameters(tool) if for_claude else object_parameters(tool)
    return mcp_tool(agent_name(tool.name), tool, schema, WHOLE_OUTPUTS)


def call_result(parts: Sequence[Part], *, success: bool) -> dict[str, Any]:
    return {"content": mcp_content(parts), "isError": not success}


def arguments_in(report: Update) -> Any:
    """Returns a reported call's arguments; None or empty if not known yet."""
    given = report.raw_input
    of_mcp = value_at(report.meta, "is_mcp_tool_call") is True and isinstance(given, dict)
    return given.get("arguments") if of_mcp else given


def without_arguments(arguments: str, names: Collection[str], tool: Tool) -> str:
    """Returns a call's arguments without these, unless the tool has parameters of such a name."""
    if not any(name in arguments for name in names):
        return arguments
    given = object_at(msgspec.json.decode(arguments))
    own = {name: value for name, value in given.items() if name not in names or declares(tool, name)}
    return arguments if own == given else encode_json(own).decode()


class ClientTools:
    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self.by_agent_name = {agent_name(tool.name): tool for tool in tools}

    def find_called_tool(self, call: Update, *, titles: bool = True) -> Tool | None:
        """Returns the client's tool that a reported call uses, if any. `titles`: also looks at the call's title,
        which the model may have written.
        """
        meta = call.meta
        for name in (call.name, value_at(meta, "toolName"), value_at(meta, "claudeCode", "toolName")):
            if isinstance(name, str):
                # The agent's own name of the tool says it all: a title beside it counts for nothing.
                return self._tool_without_prefix(name, f"mcp__{SERVER}__")
        if value_at(meta, "is_mcp_tool_call") is True and isinstance(call.raw_input, dict):
            is_ours = call.raw_input.get("server") == SERVER
            return self.by_agent_name.get(text_at(call.raw_input, "tool")) if is_ours else None
        # Gemini CLI makes the id of a call from the name of the registered tool.
        id, title = call.tool_call_id or "", call.title or ""
        prefix, suffix = f"mcp_{SERVER}_", f" ({SERVER} MCP Server)"
        if id.startswith(prefix) and title.endswith(suffix):
            name = title.removesuffix(suffix)
            return self.by_agent_name.get(name) if id.startswith(f"{prefix}{name}__") else None
        if not titles:
            return None
        named = (
            self._tool_without_prefix(title, prefix)
            for prefix in (f"mcp__{SERVER}__", f"{SERVER}_", f"{SERVER}-")
        )
        return next((tool for tool in named if tool is not None), None)

    def may_be_allowed(self, request: Update, reported: Sequence[Update]) -> bool:
        """Whether a request for permission is certainly for a call of a client's tool: only what the agent's own code
        has said counts. `reported`: what was reported before of calls with its id, the newest first. A request that
        does not name a tool is for one of these if it `fits`.
        """
        if request.kind in ACTING_KINDS:
            return False
        found = self.find_called_tool(request, titles=False)
        if found is not None or _names_tool(request):
            newest_acts = bool(reported) and not request.kind and reported[0].kind in ACTING_KINDS
            return found is not None and not newest_acts
        if not (request.title or request.raw_input):  # it can only be about the newest one
            reported = reported[:1]
        return any(
            call.kind not in ACTING_KINDS
            and self.find_called_tool(call, titles=False) is not None
            and self.fits(call, request)
            for call in reported
        )

    def fits(self, call: Update, request: Update) -> bool:
        """Whether a request for permission, which has the id of this reported call of a client's tool, may be for it:
        kind, title, content and arguments of the request do not contradict the call.
        """
        tool = self.find_called_tool(call)
        if tool is None or _names_tool(request):
            return self.find_called_tool(request) is tool
        if request.kind in ACTING_KINDS and request.kind != call.kind:
            return False
        named = bool(request.title) and (
            request.title == call.title or self.find_called_tool(request) is tool
        )
        if request.title and not named:
            return False
        if any(each.get("type") != "content" for each in objects_in(request.content)):  # a change of a file
            return False
        given, known = request.raw_input, call.raw_input or {}
        if not given:
            return True
        if not isinstance(given, dict) or not isinstance(known, dict):
            return bool(given == known)
        # The agent may ask before it has reported all arguments.
        new = (name for name in given if name not in known)
        return all(name in given and _continues(value, given[name]) for name, value in known.items()) and (
            named or all(declares(tool, name) for name in new)
        )

    def _tool_without_prefix(self, name: str, prefix: str) -> Tool | None:
        return self.by_agent_name.get(name.removeprefix(prefix)) if name.startswith(prefix) else None


def _names_tool(call: Update) -> bool:
    """Whether a report has the agent's own name of a tool."""
    meta = call.meta
    names = (call.name, value_at(meta, "toolName"), value_at(meta, "claudeCode", "toolName"))
    return any(isinstance(name, str) for name in names) or value_at(meta, "is_mcp_tool_call") is True


def _continues(value: object, now: object) -> bool:
    """Whether an argument is the same, or has become longer: arguments are reported while the model writes them."""
    return now == value or (isinstance(value, str) and isinstance(now, str) and now.startswith(value))


BEGINS: Final = "tool_call"
UPDATES: Final = "tool_call_update"
END_STATUSES: Final = ("completed", "failed")
MAX_OPEN_CALLS: Final = 256
"""Maximum open calls: twice as many as may wait at the tool server."""


class OpenCall(msgspec.Struct):
    """A tool call that has not ended. `id`: the activity's item; empty if it has not begun, None for a
    client's tool.
    """

    key: str
    """Names the call in this turn, whatever the agent's id."""
    known: Update
    """The fields reported so far, without those that `without_content` drops."""
    id: str | None = ""
    output: list[str] = []
    output_size: int = 0


class _Ended(msgspec.Struct, frozen=True):
    """The traits of an ended call, by which a repeated report of it is told from a new call."""

    kind: str | None
    title: str | None
    arguments: int


class ReportedCalls:
    def __init__(self) -> None:
        self._open: dict[str, OpenCall] = {}
        """The newest open call of each id."""
        self._of_client: dict[str, OpenCall] = {}
        """The open calls of the client's tools, by key."""
        self._ended: dict[str, _Ended] = {}
        self._earlier: frozenset[str] = frozenset()
        """The ids of the last turn's calls."""
        self._count = 0

    def start_turn(self) -> None:
        self._earlier = frozenset((*self._open, *self._ended)) - {""}
        self._open.clear()
        self._of_client.clear()
        self._ended.clear()

    @property
    def of_client(self) -> dict[str, Update]:
        """What is known of the open calls of the client's tools, by key."""
        return {key: call.known for key, call in self._of_client.items()}

    def with_id_of(self, request: Update) -> list[Update]:
        """Returns what is known of the open calls with a request's id, the newest first."""
        id = request.tool_call_id
        if not id:
            return []
        found = [self._open[id].known] if id in self._open else []
        older = [call.known for call in reversed(self._of_client.values()) if call.known.tool_call_id == id]
        return found + [call for call in older if call not in found]

    def is_old(self, report: Update) -> bool:
        """Whether a report says nothing new: it is about a call that has ended, maybe in the turn before, or it does
        not tell which call it is about.
        """
        id, kind = report.tool_call_id or "", report.session_update
        if id in self._open:
            return False
        if not id and kind != BEGINS:
            return len(self._open) != 1 or kind != UPDATES
        ended = self._ended.get(id)
        if ended is None:
            return kind == UPDATES and id in self._earlier
        if not kind:  # an agent that asks for permission waits
            return False
        return kind != BEGINS or (report.status in END_STATUSES and _summary_of(report) == ended)

    def find(self, report: Update, tools: ClientTools) -> OpenCall | None:
        """Returns the open call that a report is about; None: it begins another."""
        id, is_first = report.tool_call_id or "", report.session_update == BEGINS
        if not id and not is_first:
            return self._open.get("") or next(iter(self._open.values()), None)
        found = self._open.get(id)
        if found is None:
            return None
        if not report.session_update and found.id is None and not tools.fits(found.known, report):
            return None
        return None if is_first and (not id or _is_another(found.known, report, tools)) else found

    def begin(self, report: Update) -> tuple[OpenCall, OpenCall | None]:
        """Returns a new call, and the open call that had its id before, whose end nobody will tell. Raises
        `TooMuchHeld`.
        """
        self._count += 1
        id = report.tool_call_id or ""
        replaced = self._open.pop(id, None)
        call = self._open[id] = OpenCall(str(self._count), without_content(report))
        if max(len(self._open), len(self._of_client)) > MAX_OPEN_CALLS:
            raise TooMuchHeld(f"it began more than {MAX_OPEN_CALLS} calls of tools and ended none of them")
        return call, replaced

    def add_of_client(self, call: OpenCall) -> None:
        self._of_client[call.key] = call

    def end(self, call: OpenCall) -> None:
        id = call.known.tool_call_id or ""
        self._open.pop(id, None)
        self._of_client.pop(call.key, None)
        if id:
            self._ended[id] = _summary_of(call.known)


def without_content(call: Update) -> Update:
    meta = call.meta
    if isinstance(meta, dict):
        meta = {name: meta[name] for name in CALLED_BY_META if name in meta}
    return msgspec.structs.replace(call, content=None, entries=None, meta=meta)


def merge(before: Update, call: Update) -> Update:
    """Returns what is known of a call after a further report."""
    fields = {name: value for name in Update.__struct_fields__ if (value := getattr(call, name)) is not None}
    if isinstance(before.meta, dict) and isinstance(call.meta, dict):
        fields["meta"] = {**before.meta, **call.meta}
    if before.raw_input and not call.raw_input:
        fields.pop("raw_input", None)
    return msgspec.structs.replace(before, **fields)


def is_unnamed(known: Update, newest: Update) -> bool:
    named = value_at(known.raw_input, "command")
    return known.kind == "execute" and known.status == "pending" and newest.session_update != "" and not named


def _is_another(known: Update, report: Update, tools: ClientTools) -> bool:
    """Whether a report that begins a call is about another than the open call with its id."""
    if tools.find_called_tool(known) is not tools.find_called_tool(report):
        return True
    if known.raw_input and report.raw_input is not None and not report.raw_input:
        return True  # it begins without its arguments, as the other did
    pairs = [(known.kind, report.kind), (known.raw_input or None, report.raw_input or None)]
    if known.raw_input is None or report.raw_input is None:
        pairs.append((known.title, report.title))
    return any(before is not None and now is not None and before != now for before, now in pairs)


def _summary_of(call: Update) -> _Ended:
    return _Ended(call.kind, call.title, hash(_canonical(call.raw_input)))


def _canonical(value: Any) -> bytes:
    return encode_json(value, "deterministic") if value else b""
