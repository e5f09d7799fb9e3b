"""The client's tools: functions and custom tools (also in namespaces), tool search, and those that the client runs on
its machine. A namespace's tool is offered as `NAMESPACE__NAME`; a deferred one once tool search has listed it. Raises
`Fault` INVALID_REQUEST. Sources: OpenAI's types, requests of Codex 0.163 and 0.169.

The form of the client's tools `local_shell`, `shell` and `apply_patch` is OpenAI's own. The model has each as a
function of the same name, whose calls and outputs are items of their own. Sources: OpenAI's types, requests of the
Agents SDK 0.24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from pydantic import ConfigDict, TypeAdapter

from codex_proxy.core.items import ClientName, OwnCall, Tool
from codex_proxy.core.json_values import text_at
from codex_proxy.core.tool_names import offered_name
from codex_proxy.surfaces.answers.renderer import json_bytes, schema_json
from codex_proxy.surfaces.requests.body import validate
from codex_proxy.surfaces.requests.options import with_grammar
from codex_proxy.surfaces.responses import wire
from codex_proxy.surfaces.responses.items import ItemDict

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


def _machine_item_as_function(item: ItemDict) -> ItemDict:
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


TOOL_SEARCH: Final = "tool_search"
_DEFAULT_NAMESPACE: Final = "functions"
TOOL_LISTS: Final = frozenset({"additional_tools", "tool_search_output"})
"""Types of items that contain tools."""
_listed: TypeAdapter[Sequence[wire.AnyTool]] = TypeAdapter(
    list[wire.AnyTool], config=ConfigDict(defer_build=True)
)


class GivenTool(NamedTuple):
    """A tool of the request. `param`: the path of its name. `deferred`: whether it is offered only after a tool
    search has found it.
    """

    tool: Tool
    param: str
    deferred: bool


def name_of(namespace: str | None, name: str) -> str:
    """Returns the name under which a tool is offered, from these two names alone."""
    if namespace is None or namespace == _DEFAULT_NAMESPACE:
        return name
    return offered_name(namespace, name)


def client_tools(given: Sequence[wire.AnyTool], param: str = "tools") -> Iterator[GivenTool]:
    """Yields the tools in a field. `param`: the field's path."""
    searches = any(isinstance(tool, wire.ToolSearchTool) and tool.execution == "client" for tool in given)
    for index, tool in enumerate(given):
        path = f"{param}[{index}]"
        if isinstance(tool, wire.FunctionTool | wire.CustomTool):
            yield GivenTool(_tool(tool, None), f"{path}.name", searches and bool(tool.defer_loading))
        elif isinstance(tool, wire.NamespaceTool):
            for number, inner in enumerate(tool.tools):
                # Nobody could ever find a deferred tool where nobody searches.
                deferred = searches and bool(inner.defer_loading)
                yield GivenTool(_tool(inner, tool.name), f"{path}.tools[{number}].name", deferred)
        elif isinstance(tool, wire.ToolSearchTool) and tool.execution == "client":
            yield GivenTool(_search_tool(tool), path, False)
        elif isinstance(tool, wire.MachineTool) and not wire.runs_in_container(tool):
            yield GivenTool(machine_tool(tool), path, False)


def tools_in(items: Iterable[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Returns the tools in `additional_tools` and `tool_search_output` items; of two with the same name the later."""
    found: dict[str, Tool] = {}
    for index, item in enumerate(items):
        if item["type"] in TOOL_LISTS:
            path = f"input[{index}].tools"
            listed = validate(_listed, item["tools"], path)
            found |= {given.tool.name: given.tool for given in client_tools(listed, path)}
    return tuple(found.values())


def search_result_text(item: ItemDict) -> str:
    """Returns what a tool search has found, for the model."""
    found = [
        {"name": given.tool.name, "description": given.tool.description}
        for given in client_tools(validate(_listed, item["tools"], "tools"))
    ]
    return json_bytes({"tools": found}).decode()


def as_function_item(item: ItemDict) -> ItemDict:
    """Converts a call or output, with a call id, of tool search or of the machine's tools to one of a function."""
    if item["type"] == "tool_search_call":
        arguments = json_bytes(item["arguments"]).decode()
        return {**item, "type": "function_call", "name": TOOL_SEARCH, "arguments": arguments}
    if item["type"] == "tool_search_output":
        return {**item, "type": "function_call_output", "output": search_result_text(item)}
    return _machine_item_as_function(item)


def _tool(tool: wire.FunctionTool | wire.CustomTool, namespace: str | None) -> Tool:
    name = name_of(namespace, tool.name)
    called = None if namespace is None else ClientName(tool.name, namespace)
    description = tool.description or ""
    if isinstance(tool, wire.CustomTool):
        if isinstance(tool.format, wire.GrammarFormat):
            description = with_grammar(description, tool.format.syntax, tool.format.definition)
        return Tool(name, description, kind="custom", client_name=called)
    parameters = None if tool.parameters is None else schema_json(tool.parameters)
    return Tool(name, description, parameters, strict=bool(tool.strict), client_name=called)


def _search_tool(tool: wire.ToolSearchTool) -> Tool:
    parameters = None if tool.parameters is None else schema_json(tool.parameters)
    called = ClientName(TOOL_SEARCH, call_type="tool_search_call")
    return Tool(TOOL_SEARCH, tool.description or "", parameters, client_name=called)
