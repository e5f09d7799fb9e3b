"""One request to the model, whatever dialect it came in: history, tools, model, effort, output schema."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CALL_ID = re.compile(r"call_(\d+)_\d+")
_TOOL_TRACE = re.compile(r"call_\d+_\d+|function_call_output|^\W*tool\b", re.IGNORECASE | re.MULTILINE)


class Request:
    """What the model is asked; `items` are Responses items (message, function_call, function_call_output)."""

    __slots__ = (
        "dialect",
        "effort",
        "instructions",
        "items",
        "model",
        "offered",
        "options",
        "output_schema",
        "summary",
        "tools",
    )

    def __init__(self, dialect: str, model: str, items: list[dict[str, Any]]) -> None:
        self.dialect = dialect
        self.model = model
        self.items = items
        self.effort: str | None = None
        self.summary: str | None = None
        self.output_schema: Any = None
        self.instructions: list[str] = []
        self.tools: list[str] = []
        self.offered: list[dict[str, Any]] = []
        """The same tools with `type`, `name`, `description` and `parameters`."""
        self.options: dict[str, Any] = {}

    def last_user_text(self) -> str:
        """The text of the last user message."""
        for item in reversed(self.items):
            if item.get("type") == "message" and item.get("role") == "user":
                return text_of(item.get("content"))
        return ""

    def is_asked_anew(self) -> bool:
        """Whether the model is told that its last answer was thrown away."""
        return any("Your last answer was thrown away" in text_of(item.get("content")) for item in self.items)

    def answered_rounds(self, after: int) -> int:
        """How many rounds of tool calls have been answered since the last user message.

        A flattened prompt (proto, ACP) has no items for that: there a call id, or a line that starts with "tool",
        behind character `after` of the message counts as one answered round.
        """
        rounds = 0
        in_outputs = False
        for item in reversed(self.items):
            if item.get("type") == "message" and item.get("role") == "user":
                break
            is_output = item.get("type") == "function_call_output"
            rounds += is_output and not in_outputs
            in_outputs = is_output
        if (
            rounds == 0
            and self.dialect in ("proto", "acp")
            and _TOOL_TRACE.search(self.last_user_text(), after)
        ):
            return 1
        return rounds

    def highest_response(self) -> int:
        """The highest N of the call ids `call_N_i` in the history, so that new ids never repeat old ones."""
        highest = 0
        for item in self.items:
            text = str(item.get("call_id") or "") or text_of(item.get("content"))
            for number in _CALL_ID.findall(text):
                highest = max(highest, int(number))
        return highest

    def outputs(self) -> list[str]:
        """The texts of the tool outputs behind the last user message, in order."""
        found: list[str] = []
        for item in reversed(self.items):
            if item.get("type") == "message" and item.get("role") == "user":
                break
            if item.get("type") == "function_call_output":
                found.append(output_text(item.get("output")))
        return found[::-1]

    def is_custom(self, name: str) -> bool:
        """Whether the tool of that name takes a text in place of arguments."""
        return any(tool.get("name") == name and tool.get("type") == "custom" for tool in self.offered)

    def described(self) -> dict[str, Any]:
        """Returns the answer of the scenario `echo`."""
        return {
            "dialect": self.dialect,
            "model": self.model,
            "effort": self.effort,
            "summary": self.summary,
            "instructions": self.instructions,
            "history": [_described_item(item) for item in self.items],
            "tools": self.tools,
            "output_schema": self.output_schema,
            **self.options,
        }


def text_of(content: Any) -> str:
    """The text of a content: a string, or a list of parts with `text`."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content or ())


def output_text(output: Any) -> str:
    """Returns a tool's output as the fake model repeats it: its text, and a note about an image."""
    if isinstance(output, str):
        return output
    shown = (
        "[image]" if "image" in str(part.get("type")) else str(part.get("text") or "")
        for part in output or ()
    )
    return " ".join(shown)


def _described_item(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type")
    if kind == "function_call":
        return {"role": "assistant", "call_id": item.get("call_id"), "name": item.get("name"),
                "arguments": item.get("arguments")}  # fmt: skip
    if kind == "function_call_output":
        return {"role": "tool", "call_id": item.get("call_id"), "text": text_of(item.get("output"))}
    if kind != "message":
        return {"role": None, "type": kind}
    content = item.get("content")
    described = {"role": item.get("role"), "text": text_of(content)}
    images = 0 if isinstance(content, str) else sum("image" in str(p.get("type")) for p in content or ())
    return {**described, "images": images} if images else described
