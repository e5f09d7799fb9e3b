"""Reads Anthropic's tools and `tool_choice`. Raises `Fault` INVALID_REQUEST, also for a tool that only Anthropic's
servers run. Source: docs/messages.md#tools.

The types of Anthropic's tools that the client runs name fixed schemas, with which they are offered as functions.
Sources: docs/messages.md#tools, the inputs that Anthropic's documentation and SDKs describe.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.items import ClientName, Tool
from codex_proxy.core.json_values import text_at
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import NamedTools, ToolChoice
from codex_proxy.surfaces.answers.renderer import schema_json
from codex_proxy.surfaces.messages.wire import TOOL_FIELDS, GivenToolChoice
from codex_proxy.surfaces.requests.body import invalid_value, missing_parameter, typed_at
from codex_proxy.surfaces.requests.fields import FieldNotes
from codex_proxy.surfaces.requests.options import OfferedTools, model_name, refuse_duplicates

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_POINT: Final = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
_AREA: Final = {"type": "array", "items": _NUMBER, "minItems": 4, "maxItems": 4}


class ClientTool(NamedTuple):
    """A type of tool: the name that its calls have, words for the model, and the schema of its input."""

    name: str
    words: str
    schema: dict[str, Any]


def _commands(field: str, names: str, **others: Any) -> dict[str, Any]:
    """Returns a schema whose `field` is one of the `names`, with the `others` as optional fields."""
    return {
        "type": "object",
        "properties": {field: {"type": "string", "enum": names.split()}, **others},
        "required": [field],
    }


_BASH: Final = ClientTool(
    "bash",
    "Runs a command in a bash session that lasts, and returns its output; `restart` begins a new session.",
    {"type": "object", "properties": {"command": _TEXT, "restart": {"type": "boolean"}}},
)
_EDITED: Final = {
    "path": _TEXT,
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _NUMBER,
    "view_range": {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2},
}
_EDITING: Final = (
    "Views and changes files: `view` a file (with `view_range`) or folder, `create` one with `file_text`, replace the "
    "only `old_str` by `new_str` with `str_replace`, or `insert` text behind the line `insert_line`"
)
_WITH_TEXT: Final = {**_EDITED, "insert_text": _TEXT}
_OLD_EDITOR: Final = ClientTool(
    "str_replace_editor",
    f"{_EDITING} (in `new_str`); `undo_edit` takes the last change of a file back.",
    _commands("command", "view create str_replace insert undo_edit", **_EDITED),
)
_EDITOR_NAME: Final = "str_replace_based_edit_tool"
_MEMORY: Final = ClientTool(
    "memory",
    f"Keeps notes for later conversations in files below /memories. {_EDITING} (in `insert_text`), `delete` a path, or "
    "`rename` `old_path` to `new_path`.",
    _commands(
        "command",
        "view create str_replace insert delete rename",
        **_WITH_TEXT,
        old_path=_TEXT,
        new_path=_TEXT,
    ),
)
_FIRST_ACTIONS: Final = (
    "key type mouse_move left_click left_click_drag right_click middle_click double_click "
    "screenshot cursor_position"
)
_ACTIONS: Final = f"{_FIRST_ACTIONS} left_mouse_down left_mouse_up scroll hold_key wait triple_click"
_ACTED: Final = {
    "coordinate": _POINT,
    "start_coordinate": _POINT,
    "text": _TEXT,
    "duration": {"type": "number"},
    "scroll_direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
    "scroll_amount": _NUMBER,
}


def _computer(actions: str, **fields: Any) -> ClientTool:
    words = "Uses a screen, keyboard and mouse: each `action` with the fields that it needs."
    return ClientTool("computer", words, _commands("action", actions, **fields))


CLIENT_TOOLS: Final[Mapping[str, ClientTool]] = {
    **dict.fromkeys(("bash_20241022", "bash_20250124"), _BASH),
    **dict.fromkeys(("text_editor_20241022", "text_editor_20250124"), _OLD_EDITOR),
    "text_editor_20250429": ClientTool(
        _EDITOR_NAME,
        f"{_EDITING} (in `new_str`).",
        _commands("command", "view create str_replace insert", **_EDITED),
    ),
    "text_editor_20250728": ClientTool(
        _EDITOR_NAME,
        f"{_EDITING} (in `insert_text`).",
        _commands("command", "view create str_replace insert", **_WITH_TEXT),
    ),
    "memory_20250818": _MEMORY,
    "computer_20241022": _computer(_FIRST_ACTIONS, coordinate=_POINT, text=_TEXT),
    "computer_20250124": _computer(_ACTIONS, **_ACTED),
    "computer_20251124": _computer(f"{_ACTIONS} zoom", **_ACTED, region=_AREA),
}
"""The tools by their types."""

SERVED_FIELDS: Final = frozenset({
    "type", "name", "cache_control", "defer_loading", "allowed_callers", "strict", "max_characters",
    "display_width_px", "display_height_px", "display_number", "enable_zoom",
})  # fmt: skip
"""The fields that such tools may have; others are ignored and named."""


def client_tool(tool: Mapping[str, Any], param: str) -> Tool:
    """Returns the function for a tool whose type is in `CLIENT_TOOLS`. Raises `Fault` for another name."""
    known = CLIENT_TOOLS[text_at(tool, "type")]
    if text_at(tool, "name") not in ("", known.name):
        raise invalid_value(f"{param}.name", f"a tool of this type has the name '{known.name}'")
    schema, words = known.schema, known.words
    if known.name == "computer":
        words += f" The screen has {_size(tool, 'width')} x {_size(tool, 'height')} pixels."
        if text_at(tool, "type") == "computer_20251124" and tool.get("enable_zoom") is not True:
            schema = CLIENT_TOOLS["computer_20250124"].schema
    limit = tool.get("max_characters")
    if isinstance(limit, int) and known.name == _EDITOR_NAME:
        words += f" A view shows at most {limit} characters."
    return Tool(known.name, words, schema_json(schema))


def _size(tool: Mapping[str, Any], side: str) -> int | str:
    given = tool.get(f"display_{side}_px")
    return given if isinstance(given, int) and not isinstance(given, bool) else "unknown"


UNSUPPORTED: Final = "unsupported_tool"
_WEB_SEARCH: Final = re.compile(r"web_search_\d+")
_TOOL_SEARCH: Final = re.compile(r"tool_search_tool_\w+")
_SCHEMALESS: Final = re.compile(r"((bash|text_editor|memory|computer)|(computer|browser)_toolset)_\d+")
"""Matches types of client tools, of which only those in `CLIENT_TOOLS` have a schema that is known here."""
_ANTHROPICS: Final = re.compile(r".+_\d+|mcp_toolset")
"""Matches types of Anthropic's own tools."""
_CHOICES: Final = ("auto", "any", "tool", "none")
_NO_ARGUMENTS: Final = msgspec.Raw(b'{"type":"object","properties":{}}')


class MessagesTools(OfferedTools, frozen=True, kw_only=True):
    """The offered tools. `parallel`: whether one answer may have several calls. `client_names`: the client's names
    of tools by the model's, if they differ.
    """

    parallel: bool = True
    web_search: bool = False
    client_names: dict[str, str]
    ignored: tuple[str, ...] = ()
    """Parameters without effect, for a header."""


NO_TOOLS: Final = MessagesTools(tools=(), client_names={})


def offered_tools(
    given: Sequence[dict[str, Any]],
    choice: GivenToolChoice | None,
    referenced: Collection[str],
    notes: FieldNotes,
) -> MessagesTools:
    """Returns the tools to offer. `referenced`: the names of tools to which the history refers. `notes` gets fields
    without effect.
    """
    tools: list[Tool] = []
    names: list[str] = []
    ignored: list[str] = []
    web_search = False
    loaded = loaded_names(given, choice, referenced)
    for index, tool in enumerate(given):
        kind, param = text_at(tool, "type"), f"tools[{index}]"
        if _WEB_SEARCH.fullmatch(kind):
            web_search = True
            ignored += [f"{param}.{field}" for field in _SEARCH_OPTIONS if tool.get(field) is not None]
        elif _TOOL_SEARCH.fullmatch(kind):
            ignored.append(param)
        elif kind in ("", "custom"):
            made = _tool(tool, param)
            notes.add_unknown(tool, TOOL_FIELDS, "tools[]")
            if not tool.get("defer_loading") or text_at(tool, "name") in loaded:
                tools.append(made)
                names.append(f"{param}.name")
        elif kind in CLIENT_TOOLS:
            _check_callers(tool, param)
            made = client_tool(tool, param)
            notes.add_unknown(tool, SERVED_FIELDS, "tools[]")
            if not tool.get("defer_loading") or made.name in loaded:
                tools.append(made)
                names.append(f"{param}.name")
        else:
            raise _unsupported_tool(kind, param)
    refuse_duplicates(tools, names)
    return MessagesTools(
        tools=tuple(tools),
        choice=_choice(choice, tools, any_given=bool(given), web_search=web_search),
        parallel=not (choice is not None and choice.disable_parallel_tool_use),
        web_search=web_search and (choice is None or choice.type != "none"),
        client_names={tool.name: tool.client_name.name for tool in tools if tool.client_name is not None},
        ignored=tuple(dict.fromkeys(ignored)),
    )


def loaded_names(
    given: Sequence[dict[str, Any]], choice: GivenToolChoice | None, referenced: Collection[str]
) -> set[str]:
    """Returns tools that are offered even with `defer_loading`."""
    names = set(referenced)
    if choice is not None and choice.type == "tool" and choice.name:
        names.add(choice.name)
    if any(_TOOL_SEARCH.fullmatch(text_at(tool, "type")) for tool in given):
        names.update(text_at(tool, "name") for tool in given)
    return names


_SEARCH_OPTIONS: Final = (
    "max_uses", "allowed_domains", "blocked_domains",
    "user_location", "response_inclusion", "allowed_callers",
)  # fmt: skip
"""Options of web search for which the agent has no setting."""


def _tool(tool: dict[str, Any], param: str) -> Tool:
    name = typed_at(tool, "name", str, param)
    if not name:
        raise missing_parameter(f"{param}.name")
    schema = typed_at(tool, "input_schema", dict, param)
    _check_callers(tool, param)
    offered = model_name(name)
    return Tool(
        offered,
        typed_at(tool, "description", str, param) or "",
        _NO_ARGUMENTS if schema is None else schema_json(schema),
        strict=bool(typed_at(tool, "strict", bool, param)),
        client_name=None if offered == name else ClientName(name),
    )


def _check_callers(tool: dict[str, Any], param: str) -> None:
    """Raises `Fault` for a tool that the model may not call itself."""
    callers = tool.get("allowed_callers")
    if isinstance(callers, list) and callers and "direct" not in callers:
        raise bad_request(
            f"Invalid value for '{param}.allowed_callers': only the model calls tools here, and no program: add "
            "'direct', or leave it out.",
            f"{param}.allowed_callers",
            UNSUPPORTED,
        )


def _unsupported_tool(kind: str, param: str) -> Fault:
    shown = excerpt(kind)
    if _SCHEMALESS.fullmatch(kind):
        message = (
            f"The tool '{shown}' has no schema in the request, and the model that serves it here does not know it: "
            "offer it as a custom tool, with an 'input_schema'."
        )
    elif not _ANTHROPICS.fullmatch(kind):
        message = f"No tool of type '{shown}' is known here: offer it as a custom tool, with 'name' and 'input_schema'."
    else:
        message = (
            f"The tool '{shown}' is run by Anthropic's own servers and is not available here: offer it as a custom "
            "tool, or leave it out."
        )
    return bad_request(message, param, UNSUPPORTED)


def _choice(
    choice: GivenToolChoice | None, tools: Sequence[Tool], *, any_given: bool, web_search: bool
) -> ToolChoice:
    if choice is None or choice.type == "auto":
        return "auto"
    if choice.type == "none":
        return "none"
    if choice.type not in _CHOICES:
        known = ", ".join(f"'{each}'" for each in _CHOICES)
        raise invalid_value("tool_choice.type", f"supported values are: {known}")
    if not any_given:
        raise bad_request("'tool_choice' is only allowed when 'tools' are given.", "tool_choice")
    if choice.type == "any":
        return "required" if tools else "auto"  # the agent's own search cannot be forced
    name = choice.name or ""
    if name == "web_search" and web_search:
        return NamedTools(())
    if not name:
        raise missing_parameter("tool_choice.name")
    offered = model_name(name)
    if all(tool.name != offered for tool in tools):
        names = (tool.name if tool.client_name is None else tool.client_name.name for tool in tools)
        given = ", ".join(f"'{excerpt(each)}'" for each in names) or "none"
        raise bad_request(f"The request has no tool '{excerpt(name)}'; it has: {given}.", "tool_choice.name")
    return NamedTools((offered,), required=True)
