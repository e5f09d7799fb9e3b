"""What requests of all APIs share: settings, headers, mode, sandbox, folder, format, and the tools with their names and
calls. Raises `Fault`: NOT_ALLOWED for more than the server allows, INVALID_REQUEST.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from pydantic import BaseModel

from codex_proxy.core.damaged_json import has_halves, without_halves
from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryMessage, HistoryOutput, TextPart, Tool
from codex_proxy.core.json_values import UNREADABLE, without_surrogates
from codex_proxy.core.options import AS_IS, NAMES, Api
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.tool_names import generated_name
from codex_proxy.core.turn import SANDBOXES, Mode, Origin, Sandbox, ToolChoice, Turn
from codex_proxy.surfaces.answers.renderer import json_text, schema_json
from codex_proxy.surfaces.models import ModelCatalog, ResolvedModel
from codex_proxy.surfaces.requests.body import MAX_ITEMS, invalid_value

MODE_HEADER: Final = "X-Codex-Mode"
_HEADER_MODES: Final[dict[str, Mode | None]] = {"": None, "model": "model", "agent": "agent"}
SANDBOX_HEADER: Final = "X-Codex-Sandbox"
WORKTREE_HEADER: Final = "X-Codex-Worktree"
"""With `true` a new session works in a folder of its own."""
CHOICE_HEADERS: Final = (
    MODE_HEADER,
    "X-Codex-Workdir",
    SANDBOX_HEADER,
    "X-Codex-Activity",
    WORKTREE_HEADER,
)
"""The headers by which clients choose how agents work."""
SWITCHED_OFF: Final = (
    "Agent turns are disabled on this server or for your API key. Only the plain model is available."
)
NO_AGENT: Final = (
    "This model comes from a model server and has no agent turns. Leave agent mode out, or use "
    "a model of an agent."
)

BuiltinTools: TypeAlias = Literal["auto", "always", "never"]
Logprobs: TypeAlias = Literal["refuse", "ignore"]
"""Whether log probabilities are refused, or the field ignored, if the agent has none."""


class RequestSettings(msgspec.Struct, frozen=True, kw_only=True):
    builtin_tools: BuiltinTools = "auto"
    """The mode of requests that name none (`mode_of`); `never`: no agent mode."""
    show_activity: bool = True
    """Whether reasoning describes what the agent does."""
    sandbox: Sandbox = "read-only"
    """The widest sandbox."""
    workdir: str = ""
    """The folder of agent turns, if the request names none."""
    max_items: int = MAX_ITEMS
    web_search: bool = True
    """Whether requests may switch web search on."""
    logprobs: Logprobs = "refuse"
    max_choices: int = 5
    """The largest `n` of a chat request."""
    structured_output: bool = False
    """Whether chat requests may ask for JSON."""


class RequestHints(msgspec.Struct, frozen=True, kw_only=True):
    """The headers that change a turn, as written."""

    mode: str | None = None
    """`X-Codex-Mode`: `model` or `agent`."""
    workdir: str | None = None
    """`X-Codex-Workdir`: a folder for this request."""
    sandbox: str | None = None
    """`X-Codex-Sandbox`: a narrower sandbox."""
    activity: str | None = None
    """`X-Codex-Activity`: `items` for the agent's actions."""
    origin: Origin = Origin()
    """The servers on the request's way, and what of it goes to an upstream."""


class ParseContext(msgspec.Struct, frozen=True):
    """What parsers need beside the body."""

    settings: RequestSettings
    catalog: ModelCatalog
    hints: RequestHints


WorkdirParam: TypeAlias = Literal["X-Codex-Workdir", "metadata.workdir"] | None


class FieldNames(msgspec.Struct, frozen=True, kw_only=True):
    """An API's names of fields, for `param` and headers; `{}` stands for an index."""

    input: str = "messages"
    """The field with the conversation."""
    input_item: str = "messages[{}].content"
    tool_schema: str = "tools[{}].function.parameters"
    output_schema: str = "response_format.json_schema.schema"
    options: Mapping[str, str] = NAMES["chat"]
    """The names of options by the fields of `Turn`: one of `core.options.NAMES`, or changed."""


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. `turn` is for the agent, the rest for the answer and errors."""

    turn: Turn
    model_asked: str
    """The client's name of the model, which the answer repeats."""
    stream: bool
    fields: FieldNames = FieldNames()
    ignored: tuple[str, ...] = ()
    """Parameters without effect, for `x-codex-ignored-params`."""
    workdir_param: WorkdirParam
    """The field or header that named the folder; None if none did."""
    web_images: dict[str, str] = {}
    """Images' addresses, each with its field."""
    optional_images: frozenset[str] = frozenset()
    """The addresses in `web_images` of images that are left out if they cannot be fetched."""
    asked: frozenset[str] = frozenset()
    """Fields of the turn for whose default the client asks."""
    passed_on: tuple[str, ...] = ()
    """Unknown fields for the upstream, for `x-codex-passed-params`."""
    runs: int = 1
    """More than 1 for sampled choices."""


def stops_of(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Returns distinct stop sequences but empty ones, which would match everywhere."""
    if not stop:
        return ()
    given = (stop,) if isinstance(stop, str) else stop
    return tuple(dict.fromkeys(sequence for sequence in given if sequence))


def non_null_fields(request: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(request, name)) is not None}


def options_as_given(request: BaseModel, api: Api) -> dict[str, Any]:
    """Returns the fields of a turn that have the request's values as they are."""
    found: dict[str, Any] = {}
    for field, path in AS_IS[api].items():
        value: Any = request
        for name in path:
            value = None if value is None else getattr(value, name)
        if value is not None:
            found[field] = value
    return found


def asked_calls(parallel: bool | None) -> frozenset[str]:
    """Returns the value of `ParsedRequest.asked` for a request whose `parallel_tool_calls` is `parallel`."""
    return frozenset({"parallel_tool_calls"} if parallel else ())


def forbidden_search(name: str, settings: RequestSettings, *, asked: bool) -> tuple[str, ...]:
    """Returns the field `name` if it asks for web search, and the settings forbid that."""
    return (name,) if asked and not settings.web_search else ()


def refuse_logprobs(fields: Mapping[str, str], setting: Logprobs) -> None:
    """Raises `Fault` for fields that ask for log probabilities (`fields`, each with the name to leave out), unless
    `setting` is `ignore`.
    """
    for field, name in fields.items():
        if setting == "refuse":
            raise bad_request(
                f"Log probabilities are not available: leave '{name}' out. (With PROXY_LOGPROBS=ignore the server "
                "answers without them.)",
                field,
                "unsupported_value",
            )


def refuse_stream_options(options: object, stream: bool | None) -> None:
    """Raises `Fault` INVALID_REQUEST for `stream_options` without `stream`."""
    if options is not None and not stream:
        raise bad_request("'stream_options' is only allowed when 'stream' is true.", "stream_options")


def mode_of(resolved: ResolvedModel, context: ParseContext, *, client_acts: bool) -> Mode:
    """Returns a turn's mode: by the model's suffix or `X-Codex-Mode` (`model` if they differ), else by
    PROXY_BUILTIN_TOOLS, where `auto` is `model` for a client that seems to be an agent (`client_acts`).
    """
    server = context.settings.builtin_tools
    wishes = {resolved.mode, _header_mode(context.hints.mode)}
    if "model" in wishes:
        return "model"
    if "agent" in wishes:
        if server == "never" or resolved.plain:
            param = "model" if resolved.mode == "agent" else MODE_HEADER
            raise Fault.of(FaultKind.NOT_ALLOWED, NO_AGENT if resolved.plain else SWITCHED_OFF, param=param)
        return "agent"
    if resolved.plain:
        return "model"
    if server == "auto":
        return "model" if client_acts else "agent"
    return "agent" if server == "always" else "model"


def sandbox_of(by_header: str | None, server: Sandbox) -> Sandbox:
    """Returns the server's sandbox, or a narrower one. Raises `Fault` NOT_ALLOWED for a wider one."""
    requested = (by_header or "").strip().lower()
    if not requested:
        return server
    if requested not in SANDBOXES:
        known = ", ".join(f"'{each}'" for each in SANDBOXES)
        raise invalid_value(SANDBOX_HEADER, f"supported values are: {known}")
    if SANDBOXES.index(requested) > SANDBOXES.index(server):
        raise Fault.of(
            FaultKind.NOT_ALLOWED,
            f"The least restrictive sandbox that this server allows you is '{server}'.",
            param=SANDBOX_HEADER,
        )
    return requested


def _header_mode(value: str | None) -> Mode | None:
    header = (value or "").strip().lower()
    if header not in _HEADER_MODES:
        raise invalid_value(MODE_HEADER, "supported values are: 'model', 'agent'")
    return _HEADER_MODES[header]


class Place(NamedTuple):
    """Where and how a turn runs: a `turn` with only mode, folder and sandbox, and the field or header that named the
    folder.
    """

    turn: Turn
    workdir_param: WorkdirParam


def place_of(
    resolved: ResolvedModel,
    context: ParseContext,
    metadata: Mapping[str, str | None] | None,
    *,
    client_acts: bool,
) -> Place:
    """Returns where and how a turn runs. A folder in the header wins over one in `metadata`."""
    settings, hints = context.settings, context.hints
    folder = hints.workdir or (metadata or {}).get("workdir")
    named_by: WorkdirParam = "X-Codex-Workdir" if hints.workdir else "metadata.workdir"
    turn = Turn(
        model=resolved.agent_model,
        history=(),
        mode=mode_of(resolved, context, client_acts=client_acts),
        workdir=folder or settings.workdir,
        sandbox=sandbox_of(hints.sandbox, settings.sandbox),
        origin=hints.origin,
    )
    return Place(turn, named_by if folder else None)


JSON_OBJECT_WORDS: Final = (
    "Answer with exactly one JSON object: no text before or after it, and no code fence around it."
)


class Format(msgspec.Struct, frozen=True):
    """The wanted form of the answer. `schema` is None for `text`."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    schema: msgspec.Raw | None = None


JSON_OBJECT: Final = Format("json_object", msgspec.Raw(b'{"type":"object"}'))
"""The format of any JSON object. Agents have no setting for it: the model is told, and the answer checked."""


def json_schema_format(schema: dict[str, Any], name: str, description: str | None) -> Format:
    """Puts `name` and `description` into the schema: agents have no fields for them."""
    about = {"title": name, **({} if description is None else {"description": description})}
    return Format("json_schema", schema_json({**about, **schema}))


def with_json_hint(history: tuple[HistoryItem, ...], wanted: Format) -> tuple[HistoryItem, ...]:
    """Puts an instruction in front for `json_object`."""
    if wanted.kind != "json_object":
        return history
    return (HistoryMessage("developer", (TextPart(JSON_OBJECT_WORDS),)), *history)


# --- tools ----------------------------------------------------------------------------------------


class OfferedTools(msgspec.Struct, frozen=True, kw_only=True):
    """The offered `tools`, and which may or must be called."""

    tools: tuple[Tool, ...]
    choice: ToolChoice = "auto"


def refuse_duplicates(tools: Sequence[Tool], fields: Sequence[str]) -> None:
    """Raises `Fault` for two tools of one name. `fields`: the paths of the names."""
    names: set[str] = set()
    for tool, field in zip(tools, fields, strict=True):
        if tool.name in names:
            raise bad_request(f"The tool name '{tool.name}' is given twice.", field)
        names.add(tool.name)


def with_grammar(description: str, syntax: str, definition: str) -> str:
    # Agents have no field for a grammar.
    words = f"The input must follow this {syntax} grammar:\n{definition}"
    return f"{description}\n\n{words}" if description else words


def known_tool(name: str, kind: str, tools: Sequence[Tool], param: str) -> str:
    """Returns a chosen tool's name. Raises `Fault` if `tools` have none of this name and kind."""
    if any(tool.name == name and tool.kind == kind for tool in tools):
        return name
    given = ", ".join(f"'{tool.name}'" for tool in tools if tool.kind == kind) or "none"
    raise bad_request(f"The request has no {kind} '{excerpt(name)}'; it has: {given}.", param)


MAX_CHARS: Final = 64
"""Maximum characters that providers accept; Anthropic accepts 128."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST: Final = 8


def model_name(name: str) -> str:
    """Returns the model's name of a client's tool, which depends on `name` alone: if too long or not allowed, cut, with
    a digest.
    """
    if _PLAIN_NAME.fullmatch(name):
        return name
    return generated_name(name, "", kept=MAX_CHARS - _DIGEST - 1, digits=_DIGEST)


def input_of(arguments: str) -> str | None:
    """Returns the arguments if they are a JSON object, else None; halves of surrogate pairs become U+FFFD."""
    data = without_surrogates(arguments.strip() or "{}").encode()
    if has_halves(data):
        data = without_halves(data)
    try:
        return data.decode() if isinstance(msgspec.json.decode(data), dict) else None
    except UNREADABLE:
        return None


def whole_input(arguments: str, *, custom: bool, complete: bool) -> str | None:
    """Returns the arguments as a JSON object; if they are none, or a custom tool's, as a text in `input`. None for a
    call that was cut off.
    """
    found = None if custom else input_of(arguments)
    if not complete and (found is None or not arguments.strip()):
        return None
    return (b'{"input":%b}' % json_text(arguments)).decode() if found is None else found


class HistoryWithCalls:
    """Keeps a message's calls, their outputs and the items between them until `finish_calls`."""

    def __init__(self) -> None:
        self.items: list[HistoryItem] = []
        self.calls: dict[str, HistoryCall] = {}
        """The calls since the last `finish_calls`."""
        self.outputs: dict[str, HistoryOutput] = {}
        self._beside: list[HistoryItem] = []

    def add(self, item: HistoryItem) -> None:
        """Adds an item; one behind a call is kept until `finish_calls`."""
        (self._beside if self.calls else self.items).append(item)

    def add_call(self, call: HistoryCall) -> None:
        self.calls[call.call_id] = call
        self.items.append(call)

    @property
    def unanswered(self) -> list[HistoryCall]:
        return [call for call_id, call in self.calls.items() if call_id not in self.outputs]

    def finish_calls(self, missing: str = "") -> None:
        """Adds each call's output (else `missing`), then the items between them."""
        for call_id in self.calls:
            self.items.append(self.outputs.get(call_id) or HistoryOutput(call_id, (TextPart(missing),)))
        self.items += self._beside
        self.calls, self.outputs, self._beside = {}, {}, []
