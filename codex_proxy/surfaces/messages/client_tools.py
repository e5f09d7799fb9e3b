"""Anthropic's tools that the client runs: their types name fixed schemas, with which they are offered as functions.
Source: docs/messages.md#tools, the inputs that Anthropic's documentation and SDKs describe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from codex_proxy.core.items import Tool
from codex_proxy.core.json_values import text_at
from codex_proxy.surfaces.base import schema_json
from codex_proxy.surfaces.body import invalid_value

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
