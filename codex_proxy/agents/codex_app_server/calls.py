"""Converts the client's tools to Codex's form, and finds their calls in the raw items of a model call. Codex accepts
names of `[A-Za-z0-9_-]{1,128}`, reserves `mcp__`, leaves out `IGNORED_NAMES` (in agent turns also `OWN_TOOLS`), and has
no custom tools. In agent turns newer models call tools from JavaScript, by `javascript_name`: two names may become one
there. Raw items are kept until the model call ends, because a retry repeats them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from codex_proxy.agents.codex_app_server.wire import Params, RawItemCall, RawItemHead, check_readable
from codex_proxy.agents.dialect import HeldSize
from codex_proxy.agents.shared.conversions import custom_input
from codex_proxy.agents.shared.json_lines import decode_part
from codex_proxy.agents.shared.tool_schemas import object_parameters
from codex_proxy.core.events import Event, Notice, RawItem, ToolCallRequested
from codex_proxy.core.items import Tool
from codex_proxy.core.json_values import is_json
from codex_proxy.core.limits import ITEM_SIZE
from codex_proxy.core.tool_names import generated_name

VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
IGNORED_NAMES = frozenset({"exec_command", "shell_command", "functions", "mcp"})
"""Names that Codex refuses, or accepts and leaves out of the model's request."""
OWN_TOOLS = frozenset(
    {
        *("apply_patch", "exec", "local_shell", "shell", "view_image", "wait", "write_stdin"),
        *("create_goal", "get_goal", "update_goal", "update_plan"),
        *("list_mcp_resource_templates", "list_mcp_resources", "read_mcp_resource"),
        *("request_permissions", "request_plugin_install", "tool_search", "tool_suggest", "web_search"),
        *("request_user_input", "request_user_input_async", "send_message_to_user_async"),
        *("get_context_remaining", "new_context", "wait_for_environment"),
        *("close_agent", "resume_agent", "send_input", "spawn_agent", "spawn_agents_on_csv", "wait_agent"),
        *("followup_task", "interrupt_agent", "list_agents", "send_message"),
    }
)
"""Names of Codex's own tools in agent turns, for some of its models, releases and settings."""
OWN_NAMESPACES = ("clock__", "collaboration__", "multi_agent_v1__")
"""How the names of further ones begin where the model calls tools from JavaScript."""
RESERVED_PREFIX = "mcp__"
PREFIX = "client_"
"""The prefix of changed names; a client's name with it is changed, too."""

MAX_CHARS = 64
"""Maximum characters of a changed name: providers take 64."""

DIGEST_DIGITS = 16

MAX_KEPT_CHARS = MAX_CHARS - len(PREFIX) - 1 - DIGEST_DIGITS

_ENDS_LIKE_A_DIGEST = re.compile(rf"[_-][0-9a-f]{{{DIGEST_DIGITS}}}\Z")


def javascript_name(name: str) -> str:
    """Returns the name of a tool in the model's JavaScript: Codex replaces what an identifier may not have."""
    return re.sub(r"^[0-9]|[^A-Za-z0-9_$]", "_", name)


def agent_name(name: str, *, plain: bool = True) -> str:
    """Returns the same name, or with `client_` if Codex reserves or ignores it, or has such a tool itself (never if
    `plain`: it has no tools), and with a digest if it is not allowed or ends like one.
    """
    if not _is_reserved(name, plain=plain) and VALID_NAME.fullmatch(name):
        return name
    if (
        VALID_NAME.fullmatch(name)
        and len(PREFIX + name) <= MAX_CHARS
        and not _ENDS_LIKE_A_DIGEST.search(name)
    ):
        return PREFIX + name
    return _name_with_digest(name)


def _is_reserved(name: str, *, plain: bool) -> bool:
    if not plain:
        name = javascript_name(name)
        if name in OWN_TOOLS or name.startswith(OWN_NAMESPACES):
            return True
    return name in IGNORED_NAMES or name.startswith((RESERVED_PREFIX, PREFIX))


def _name_with_digest(name: str) -> str:
    return generated_name(name, PREFIX, kept=MAX_KEPT_CHARS, digits=DIGEST_DIGITS)


def agent_names(tools: Iterable[Tool], *, plain: bool = True) -> dict[str, str]:
    """Returns the `agent_name` of each tool of a turn, by its own name. Of those that would have one `javascript_name`
    in an agent turn, all but the one that is written so have a digest.
    """
    names = {tool.name: agent_name(tool.name, plain=plain) for tool in tools}
    if plain:
        return names
    in_javascript = {name: javascript_name(given) for name, given in names.items()}
    count = Counter(in_javascript.values())
    for name, called in in_javascript.items():
        if count[called] > 1 and called != names[name]:
            names[name] = _name_with_digest(name)
    return names


def name_for_agent(tools: Iterable[Tool], *, plain: bool) -> Callable[[str], str]:
    """Returns a function from the name of any tool, also of one that the turn no longer has, to Codex's."""
    names = agent_names(tools, plain=plain)
    return lambda name: names.get(name) or agent_name(name, plain=plain)


def dynamic_tools(tools: Sequence[Tool], *, plain: bool = True) -> list[dict[str, Any]]:
    """Returns the tools for `thread/start`. `plain`: whether Codex has no tools of its own."""
    names = agent_names(tools, plain=plain)
    return [
        {
            "type": "function",
            "name": names[tool.name],
            "description": tool.description,
            "inputSchema": object_parameters(tool),
        }
        for tool in tools
    ]


KEPT_TYPES = frozenset(
    {
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "web_search_call",
        "image_generation_call",
        "local_shell_call",
        "message",
    }
)
"""Raw items that the model must see again; others are the agent's own context."""

CALL_TYPES = frozenset({"function_call", "custom_tool_call"})

CLIENT_NAMESPACES = (None, "", "functions")
"""The namespaces of calls of the client's tools; Codex puts them into the last for some models."""

OUTPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})
"""Raw items between two model calls; a retry does not repeat them."""


class ModelItems:
    """The raw items of the current model call, and the client's calls among them."""

    def __init__(self, tools: Sequence[Tool] = (), *, plain: bool = True) -> None:
        """`plain`: whether Codex has no tools of its own."""
        names = agent_names(tools, plain=plain)
        self._tools = {names[tool.name]: tool for tool in tools}
        self._plain = plain
        self._events: list[Event] = []
        self._held = HeldSize("items of the model")
        self._calls: dict[str, ToolCallRequested] = {}
        self._response_open = False
        self._agent_calls: set[str] = set()
        """Ids of calls that Codex must answer itself before the client is asked."""
        self._outputs_from_client: set[str] = set()
        """Ids of calls whose outputs are in the client's history."""

    def add_item(self, head: RawItemHead, item: bytes) -> bool:
        """Adds an item of the model. Returns False for a message of Codex or an output. Raises `UnreadableError`."""
        if head.type not in KEPT_TYPES or (head.type == "message" and head.role != "assistant"):
            return False
        check_readable(item)
        call = decode_part(item, RawItemCall) if head.type in CALL_TYPES else None
        self._response_open = True
        self._add(head.type, item)
        if call is not None:
            self._add_call(head, call)
        return True

    def add_output(self, head: RawItemHead, item: bytes) -> str | None:
        """Adds a call's output, unless the client has it. Returns the call's id; None for other items. Raises
        `UnreadableError`.
        """
        if head.type not in OUTPUT_TYPES:
            return None
        check_readable(item)
        call_id = decode_part(item, RawItemCall).call_id
        self._agent_calls.discard(call_id)
        if call_id in self._outputs_from_client:
            self._outputs_from_client.remove(call_id)
        else:
            self._add(head.type, item)
        return call_id

    def _add(self, type: str, item: bytes) -> None:
        self._held.add(len(item) + ITEM_SIZE)
        self._events.append(RawItem(type, item))

    def note_client_outputs(self, call_ids: Iterable[str]) -> None:
        self._outputs_from_client.update(call_ids)

    def _add_call(self, head: RawItemHead, call: RawItemCall) -> None:
        """Adds a call of a client's tool. A call that Codex answers itself (unknown tool, invalid arguments) gets a
        `Notice`, but not an unknown tool's in agent turns.
        """
        # A tool of an MCP server in config.toml may have the same name: its namespace tells.
        tool = self._tools.get(call.name) if call.namespace in CLIENT_NAMESPACES else None
        if tool is None:
            if self._plain:  # in agent mode it may be one of the agent's own tools
                self._events.append(Notice("unoffered_call", call.name))
            self._await_agent_output(call)
        elif head.type == "function_call" and not is_json(call.arguments.strip().encode() or b"{}"):
            self._events.append(Notice("unreadable_arguments", call.name))
            self._await_agent_output(call)
        elif not self.has_call(call.call_id):
            as_function = head.type == "function_call"
            text = call.arguments or call.input
            self._calls[call.call_id] = _tool_call_request(
                call.call_id, tool, text, head.id, as_function=as_function
            )

    def _await_agent_output(self, call: RawItemCall) -> None:
        """Waits for Codex's own output, unless a client's call came before: some releases run calls in order."""
        if not self._calls:
            self._agent_calls.add(call.call_id)

    def on_output_requested(self, begun: Collection[str]) -> None:
        """Handles Codex's request for a client's output. Of the calls that Codex must answer itself, forgets those
        that it has not begun (`begun`): it begins no other before it has the output.
        """
        if self._agent_calls:
            self._agent_calls = {call_id for call_id in self._agent_calls if call_id in begun}

    def has_call(self, call_id: str) -> bool:
        return call_id in self._calls

    def add_requested_call(self, params: Params) -> bool:
        """Adds a call that came in no raw item, if its tool is the client's. Models with the single tool `exec` call
        the client's tools from JavaScript.
        """
        tool = self._tools.get(params.tool or "")
        if not params.call_id or tool is None:
            return False
        text = bytes(params.arguments).decode("utf-8", "replace")
        self._calls[params.call_id] = _tool_call_request(params.call_id, tool, text, None, as_function=True)
        return True

    @property
    def must_request_now(self) -> bool:
        """Whether calls wait for the client, no response is open, and Codex answers no call itself."""
        return bool(self._calls) and not self._response_open and not self._agent_calls

    def end_response(self) -> bool:
        """Handles the end of a model's response. Returns whether the step ends; otherwise it waits for calls that
        Codex answers itself.
        """
        self._response_open = False
        return not (self._calls and self._agent_calls)

    def take_outputs(self) -> list[Event]:
        """Returns outputs that came between two model calls: they belong before the next call's text."""
        if self._response_open or self._calls:
            return []
        outputs, self._events = self._events, []
        self._held.clear()
        return outputs

    def discard_for_retry(self) -> None:
        """Drops raw items and calls; outputs stay."""
        self._calls.clear()
        self._agent_calls.clear()
        self._response_open = False
        kept = [event for event in self._events if isinstance(event, RawItem) and event.type in OUTPUT_TYPES]
        self._events = [*kept]
        self._held.clear()
        for event in kept:
            self._held.add(len(event.json) + ITEM_SIZE)

    def take(self) -> tuple[list[Event], list[ToolCallRequested]]:
        events, self._events = self._events, []
        self._held.clear()
        calls, self._calls = list(self._calls.values()), {}
        self._agent_calls.clear()
        self._response_open = False
        return events, calls


def _tool_call_request(
    call_id: str, tool: Tool, text: str, item_id: str | None, *, as_function: bool
) -> ToolCallRequested:
    if tool.kind == "custom" and as_function:
        text = custom_input(text)
    return ToolCallRequested(call_id, call_id, tool.name, text, item_id or call_id, tool.kind)
