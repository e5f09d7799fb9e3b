"""What the model gets in one turn, in the same form for all dialects."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CALL_ID = re.compile(r"call_(\d+)_\d+")
_TOOL_TRACE = re.compile(r"call_\d+_\d+|function_call_output|^\W*tool\b", re.IGNORECASE | re.MULTILINE)


class Request:
    """The model's input. `items`: the history as Responses items."""

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
        """The tools in `tools`, each with `type`, `name`, `description` and `parameters`."""
        self.options: dict[str, Any] = {}

    def last_user_text(self) -> str:
        """Returns the text of the last user message; empty if there is none."""
        for item in reversed(self.items):
            if item.get("type") == "message" and item.get("role") == "user":
                return text_of(item.get("content"))
        return ""

    def is_asked_anew(self) -> bool:
        """Whether the proxy has discarded the model's last answer and asks for another."""
        return any("Your last answer was thrown away" in text_of(item.get("content")) for item in self.items)

    def answered_rounds(self, after: int) -> int:
        """Returns how many rounds of tool calls were answered since the last user message. In a history flattened to
        one text (proto, ACP), a call id, or a line that begins with "tool", after the character `after` counts as one.
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
        """Returns the highest N of the call ids `call_N_i` in the history (0 for none), which no new id repeats."""
        highest = 0
        for item in self.items:
            text = str(item.get("call_id") or "") or text_of(item.get("content"))
            for number in _CALL_ID.findall(text):
                highest = max(highest, int(number))
        return highest

    def outputs(self) -> list[str]:
        """Returns the tool outputs after the last user message, oldest first."""
        found: list[str] = []
        for item in reversed(self.items):
            if item.get("type") == "message" and item.get("role") == "user":
                break
            if item.get("type") == "function_call_output":
                found.append(output_text(item.get("output")))
        return found[::-1]

    def is_custom(self, name: str) -> bool:
        """Whether this is a custom tool, which takes a text instead of JSON arguments."""
        return any(tool.get("name") == name and tool.get("type") == "custom" for tool in self.offered)

    def describe(self) -> dict[str, Any]:
        """Returns the request as JSON values: the answer of the scenario `echo`."""
        return {
            "dialect": self.dialect,
            "model": self.model,
            "effort": self.effort,
            "summary": self.summary,
            "instructions": self.instructions,
            "history": [_describe_item(item) for item in self.items],
            "tools": self.tools,
            "output_schema": self.output_schema,
            **self.options,
        }


def text_of(content: Any) -> str:
    """Returns the text of a message's content: a string or parts."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content or ())


def output_text(output: Any) -> str:
    """Returns a tool output's text, with `[image]` for each image."""
    if isinstance(output, str):
        return output
    shown = (
        "[image]" if "image" in str(part.get("type")) else str(part.get("text") or "")
        for part in output or ()
    )
    return " ".join(shown)


def _describe_item(item: dict[str, Any]) -> dict[str, Any]:
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
