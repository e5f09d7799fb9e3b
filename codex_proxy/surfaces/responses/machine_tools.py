"""Tools whose form is OpenAI's own and that the client runs on its machine: `local_shell`, `shell`, `apply_patch`. The
model has each as a function of the same name, whose calls and outputs are items of their own. Sources: OpenAI's types,
requests of the Agents SDK 0.24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from codex_proxy.core.items import ClientName, OwnCall, Tool
from codex_proxy.core.json_values import text_at
from codex_proxy.surfaces.base import json_bytes, schema_json
from codex_proxy.surfaces.items import ItemDict
from codex_proxy.surfaces.responses import wire_tools as wire

_Arguments: TypeAlias = Mapping[str, Any]

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "minimum": 0}
_PATH: Final = {"type": "string", "minLength": 1, "description": "The file, relative to the working folder."}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _operation(kind: str, diff: str) -> dict[str, Any]:
    changed = {"type": "string", "minLength": 1, "description": diff}
    return _object("type path diff", type={"type": "string", "enum": [kind]}, path=_PATH, diff=changed)


_LOCAL_SHELL: Final = _object(
    "command",
    command={
        "type": "array",
        "items": _TEXT,
        "minItems": 1,
        "description": 'The program and its arguments, like ["bash", "-lc", "ls"].',
    },
    working_directory=_TEXT,
    timeout_ms=_NUMBER,
)
_SHELL: Final = _object(
    "commands",
    commands={"type": "array", "items": _TEXT, "minItems": 1, "description": 'Command lines, like "ls -l".'},
    timeout_ms={**_NUMBER, "description": "The time for all commands."},
    max_output_length={
        **_NUMBER,
        "description": "The most characters of output that you want of each command.",
    },
)
_NEW_FILE: Final = "The whole file, with + in front of each line."
_CHANGED_FILE: Final = (
    "The changes in the V4A form, without line numbers and names of files. For each change a line `@@`, or `@@ ` and "
    "the line of the file (a function, a class) behind which it is; then lines of the file, with a blank in front of "
    "those that stay (three before and three behind the change), - of those that go and + of those that come."
)
_GONE_FILE: Final = {
    "type": "object",
    "properties": {"type": {"type": "string", "enum": ["delete_file"]}, "path": _PATH},
    "required": ["type", "path"],
}
_APPLY_PATCH: Final = _object(
    "operation",
    operation={
        "type": "object",
        "anyOf": [
            _operation("create_file", _NEW_FILE),
            _operation("update_file", _CHANGED_FILE),
            _GONE_FILE,
        ],
    },
)

_SHELL_WORDS: Final = (
    "Runs commands on the user's machine, each in a shell of its own and perhaps side by side, and returns the output "
    "and the exit code of each."
)
_FUNCTIONS: Final[Mapping[str, tuple[OwnCall, str, dict[str, Any]]]] = {
    "local_shell": (
        "local_shell_call",
        "Runs a command on the user's machine, and returns its output and exit code.",
        _LOCAL_SHELL,
    ),
    "shell": ("shell_call", _SHELL_WORDS, _SHELL),
    "apply_patch": (
        "apply_patch_call",
        "Creates, updates or deletes one file on the user's machine, and returns whether that was done.",
        _APPLY_PATCH,
    ),
}
_NAMES: Final = {call_type: name for name, (call_type, _, _) in _FUNCTIONS.items()}


def machine_tool(tool: wire.MachineTool) -> Tool:
    """Returns the function that the model gets. It is told of the skills that the tool has."""
    call_type, words, schema = _FUNCTIONS[tool.type]
    environment = tool.environment if isinstance(tool, wire.ShellTool) else None
    if isinstance(environment, wire.LocalEnvironment) and environment.skills:
        words = "\n".join(
            [f"{words} The user's skills are described in these folders:", *_skills(environment.skills)]
        )
    return Tool(tool.type, words, schema_json(schema), client_name=ClientName(tool.type, call_type=call_type))


def _skills(skills: Iterable[wire.LocalSkill]) -> list[str]:
    return [f"- {skill.name} ({skill.path}): {skill.description}" for skill in skills]


# --- what clients send back -----------------------------------------------------------------------


def as_function_item(item: ItemDict) -> ItemDict:
    """Converts a call or output of such a tool to that of a function; returns other items as they are."""
    kind = item["type"]
    if kind in _NAMES:
        return {
            **item,
            "type": "function_call",
            "name": _NAMES[kind],
            "arguments": json_bytes(_arguments_of(item)).decode(),
        }
    if kind in _OUTPUTS:
        return {**item, "type": "function_call_output", "output": _OUTPUTS[kind](item)}
    return item


def _arguments_of(call: ItemDict) -> dict[str, Any]:
    if "operation" in call:
        return {"operation": call["operation"]}
    return {
        name: value for name, value in call["action"].items() if name != "type" and value not in (None, {})
    }


def _patch_output(item: ItemDict) -> str:
    output = item.get("output")
    return f"{item['status']}: {output}" if output else item["status"]


_OUTPUTS: Final[Mapping[str, Callable[[ItemDict], str]]] = {
    "local_shell_call_output": lambda item: item["output"],
    "shell_call_output": lambda item: json_bytes(item["output"]).decode(),
    "apply_patch_call_output": _patch_output,
}
"""An output's text for the model, by the item's type."""


# --- what they get --------------------------------------------------------------------------------


def _local_shell_call(given: _Arguments) -> dict[str, Any]:
    folder = given.get("working_directory")
    action: dict[str, Any] = {
        "type": "exec",
        "command": _words(given.get("command")),
        "env": {},
        "working_directory": folder if isinstance(folder, str) else None,
        "timeout_ms": _number(given.get("timeout_ms")),
    }
    return {"action": action}


def _shell_call(given: _Arguments) -> dict[str, Any]:
    action: dict[str, Any] = {
        "commands": _words(given.get("commands")),
        "timeout_ms": _number(given.get("timeout_ms")),
        "max_output_length": _number(given.get("max_output_length")),
    }
    return {"action": action, "environment": {"type": "local"}}


def _apply_patch_call(given: _Arguments) -> dict[str, Any]:
    kind, path, diff = (text_at(given, "operation", name) for name in ("type", "path", "diff"))
    if kind == "delete_file":
        return {"operation": {"type": kind, "path": path}}
    kind = kind if kind == "create_file" else "update_file"
    return {"operation": {"type": kind, "path": path, "diff": diff}}


CALL_FIELDS: Final[Mapping[str, Callable[[_Arguments], dict[str, Any]]]] = {
    "local_shell_call": _local_shell_call,
    "shell_call": _shell_call,
    "apply_patch_call": _apply_patch_call,
}
"""A call's fields beside type, id, status and call id, by its type. What is not as the schema has it is empty."""


def _words(value: Any) -> list[str]:
    return value if isinstance(value, list) and all(isinstance(word, str) for word in value) else []


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
