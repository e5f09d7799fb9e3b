"""What the fake model does without a scenario: it calls the tool that the prompt mentions, once, and answers in the
format of the request's schema. It uses what a model would read: the prompt, the tools, the schema, and the instructions
that the proxy adds.
"""

from __future__ import annotations

import json
import re

from fake_proto.request import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fake_proto.request import Request

MAX_CALLS = 25
"""The most rounds of calls in one turn if the request requires a call in every answer."""
IGNORED_WORDS = frozenset(
    (
        "about", "after", "also", "and", "any", "are", "call", "can", "could", "does", "find", "for",
        "from", "get", "given", "has", "have", "here", "how", "into", "its", "it", "just", "like",
        "list", "look", "make", "new", "not", "now", "one", "please", "return", "returns", "run",
        "set", "should", "some", "tell", "that", "the", "their", "them", "then", "there", "these",
        "this", "tool", "tools", "use", "used", "user", "using", "was", "were", "what", "when",
        "where", "which", "will", "with", "would", "you", "your",
    )
)  # fmt: skip
"""Frequent words, which are ignored when the prompt is compared with the tools."""
TELLS_OF_JSON = re.compile(r"exactly one JSON (value|object)")
TELLS_TO_CALL = "Do not answer with text."


def unmarked_scenario(request: Request) -> dict[str, Any] | None:
    """Returns a scenario in the form of the files; None for the default text."""
    schema = wanted_schema(request)
    must_call = _must_call(request)
    answered = bool(request.outputs())
    tool = None
    if must_call or not answered:
        tool = mentioned_tool(request.last_user_text(), request.offered, required=must_call)
    if tool is None and schema is None and not answered:
        return None
    from fake_proto.generate import value_for  # only here: most turns start faster without it

    if schema is not None:
        text = json.dumps(value_for(schema), ensure_ascii=False)
    else:
        text = "The tool said: {outputs}"
    answer = {"actions": [{"do": "message", "text": text}]}
    if tool is None:
        return {"steps": [answer]}
    arguments = json.dumps(value_for(tool.get("parameters") or {"type": "object"}))
    call = {"name": str(tool.get("name")), "arguments": [arguments]}
    calling = {"actions": [{"do": "calls", "calls": [call]}], "end": "tool_calls"}
    return {"steps": [calling] * MAX_CALLS if must_call else [calling, answer]}


def wanted_schema(request: Request) -> Any:
    """Returns the JSON Schema of the answer: the request's, or the one in a developer message; None if any text will
    do.
    """
    if request.output_schema is not None:
        return request.output_schema
    for text in reversed(_instructions_of(request)):
        if TELLS_OF_JSON.search(text):
            _, _, after = text.partition("JSON schema: ")
            return json.JSONDecoder().raw_decode(after)[0] if after.startswith("{") else {"type": "object"}
    return None


def mentioned_tool(
    text: str, tools: list[dict[str, Any]], *, required: bool = False
) -> dict[str, Any] | None:
    """Returns the tool that the text mentions most: by its name, a word of it, or two words of its description; without
    any None, or the first tool if one is `required`.
    """
    spoken = _words(text)
    best, most = (tools[0], 0) if required and tools else (None, 0)
    for tool in tools:
        name = str(tool.get("name"))
        score = 100 * bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text))
        score += 3 * len(spoken & _words(name))
        described = _words(str(tool.get("description") or ""))
        shared = len(spoken & described)
        score += shared if score or shared >= min(2, len(described)) else 0
        if score > most:
            best, most = tool, score
    return best


def _must_call(request: Request) -> bool:
    told = [item for item in request.items[-1:] if item.get("role") == "developer"]
    return any(TELLS_TO_CALL in text_of(item.get("content")) for item in told)


def _instructions_of(request: Request) -> list[str]:
    # In an ACP prompt, which has one text, the instructions are those of no role.
    roles = ("user",) if request.dialect == "acp" else ("developer", "system")
    said = (item for item in request.items if item.get("role") in roles)
    return [*request.instructions, *(text_of(item.get("content")) for item in said)]


def _words(text: str) -> set[str]:
    """Returns the words that tell something, in lower case, without a plural's `s`."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text).replace("_", " ").lower()
    found = {word for word in re.findall(r"[^\W\d]{3,}", apart) if word not in IGNORED_WORDS}
    return {word.removesuffix("s") if len(word) > 4 else word for word in found}
