"""One thread of `codex app-server`."""

from __future__ import annotations

from fake_proto.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fake_proto.app_turn import AppTurn

PART_TYPES = ("input_text", "input_image", "input_audio", "output_text")


class AppThread:
    """A thread: the parameters of `thread/start`, its history as Responses items, its token total, its running
    turn. `parent`: the thread whose subagent it is.
    """

    __slots__ = (
        "effort",
        "folder",
        "identifier",
        "instructions",
        "items",
        "model",
        "offered",
        "output_schema",
        "parent",
        "raw",
        "sandbox",
        "subscribed",
        "summary",
        "tools",
        "total",
        "turn",
    )

    def __init__(
        self, identifier: str, params: dict[str, Any], model: str, parent: AppThread | None = None
    ) -> None:
        self.identifier = identifier
        self.parent = parent
        self.model = model
        self.effort: str | None = None
        self.folder = str(params.get("cwd") or "")
        self.sandbox = str(params.get("sandbox") or "read-only")
        self.raw = params.get("experimentalRawEvents") is True
        texts = (params.get("baseInstructions"), params.get("developerInstructions"))
        self.instructions = [text for text in texts if text]
        self.offered = offered_tools(params.get("dynamicTools"))
        self.tools = [str(tool["name"]) for tool in self.offered]
        self.items: list[dict[str, Any]] = []
        self.total = {"input": 0, "cached": 0, "output": 0, "reasoning": 0}
        self.turn: AppTurn | None = None
        self.subscribed = True
        self.summary: str | None = None
        self.output_schema: Any = None

    def request(self) -> Request:
        """Returns what the model gets now."""
        request = Request("app-server", self.model, list(self.items))
        request.effort, request.summary, request.output_schema = self.effort, self.summary, self.output_schema
        request.instructions = self.instructions
        request.tools, request.offered = self.tools, self.offered
        return request


def offered_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Returns the tools of `dynamicTools`, with `parameters`. A tool in a namespace is named `NAMESPACE.NAME`."""
    found: list[dict[str, Any]] = []
    for tool in tools or ():
        if tool.get("type") == "namespace":
            inner = tool.get("tools") or ()
            found.extend({**each, "name": f"{tool['name']}.{each['name']}"} for each in inner)
        else:
            found.append(tool)
    return [{**tool, "parameters": tool.get("inputSchema")} for tool in found]


def refusal_of(items: list[dict[str, Any]]) -> str | None:
    """Returns Codex's error for items that cannot be injected; None if they can."""
    if not items:
        return "items must not be empty"
    for index, item in enumerate(items):
        start = f"items[{index}] is not a valid response item: "
        if "type" not in item:
            return start + "missing field `type`"
        if item["type"] != "message":
            continue
        content = item.get("content")
        if isinstance(content, str):
            return f'{start}invalid type: string "{content}", expected a sequence'
        for part in content or ():
            if part.get("type") not in PART_TYPES:
                expected = ", ".join(f"`{name}`" for name in PART_TYPES)
                return f"{start}unknown variant `{part.get('type')}`, expected one of {expected}"
            if str(part.get("image_url", "")).startswith("http"):
                return "remote image URLs are not supported; use an inline data URL instead"
    return None


def input_items(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the input of `turn/start` as at most one user message of the Responses API."""
    content = [
        {"type": "input_image", "image_url": part.get("url")}
        if part.get("type") == "image"
        else {"type": "input_text", "text": part.get("text")}
        for part in parts
    ]
    return [{"type": "message", "role": "user", "content": content}] if content else []
