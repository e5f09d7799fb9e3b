"""Items of a session as text for another agent's model, of bounded length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from codex_proxy.core.json_values import encode_json
from codex_proxy.core.shown_text import escape_lines, one_line

MAX_ITEM: Final = 4_000
"""Maximum characters of an item."""
MAX_TEXT: Final = 40_000
"""Maximum characters of all items together."""


def shortened(text: str, most: int = MAX_ITEM) -> str:
    """Returns the text with its middle left out if it is longer than `most` characters, and with control characters and
    marks that change the direction of writing as visible escapes.
    """
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n[{len(text) - 2 * half} characters were left out]\n{text[-half:]}"
    return escape_lines(text)


def text_of(item: Mapping[str, Any]) -> str:
    """Returns an item's text. `item`: an object as the Agents API has it."""
    match item["type"]:
        case "message":
            said = "\n".join(_part(part) for part in item["content"])
            return f"{item['role']}: {shortened(said)}"
        case "command_execution":
            code = item["exit_code"]
            ended = item["status"] if code is None else f"exit code {code}"
            return (
                f"command ({ended}): {shortened(item['command'])}\n{shortened(item['output'] or '')}".rstrip()
            )
        case "mcp_call":
            call = f"{item['server_label']}.{item['name']}({_json(item['arguments'])})"
            result = item["error"] or item["output"]
            result = "" if result is None else result if isinstance(result, str) else _json(result)
            return f"tool ({item['status']}): {shortened(call)}\n{shortened(result)}".rstrip()
        case "reasoning":
            return f"reasoning: {shortened(' '.join(part['text'] for part in item['summary']))}"
        case "web_search_call":
            return f"web search: {shortened(item['action'].get('query') or '')}"
        case kind:
            rest = {name: value for name, value in item.items() if name not in ("type", "id", "turn_id")}
            return f"{kind}: {shortened(_json(rest))}"


def _part(part: Mapping[str, Any]) -> str:
    return str(part["text"]) if "text" in part else f"[{part['type']}]"


def _json(value: object) -> str:
    return encode_json(value).decode()


def doing(item: Mapping[str, Any]) -> str:
    """Returns one line that says what the agent does with an item that has begun; empty if it says nothing."""
    match item["type"]:
        case "message":
            return "writes a message" if item["role"] == "assistant" else ""
        case "command_execution":
            return one_line(escape_lines(f"runs {item['command'][:1000]}"))
        case "mcp_call":
            return one_line(escape_lines(f"calls {item['server_label']}.{item['name']}"))
        case "reasoning":
            return "thinks"
        case "web_search_call":
            return "searches the web"
        case kind:
            return str(kind)


def pages_text(items: Sequence[Mapping[str, Any]], *, newest: bool) -> tuple[list[str], bool]:
    """Returns the texts of items, each with its id, that have at most `MAX_TEXT` characters; and whether some were left
    out. `newest`: whether the last items come first to be taken; else the first ones. They stay in order.
    """
    found: list[str] = []
    left = MAX_TEXT
    for item in reversed(items) if newest else items:
        text = f"[{item['id']}] {text_of(item)}"
        left -= len(text)
        if left < 0 and found:
            break
        found.append(text)
    return (found[::-1] if newest else found), len(found) < len(items)


def last_words(items: Iterable[Mapping[str, Any]]) -> str:
    """Returns the last message of the agent; empty without one. `items`: the newest first."""
    for item in items:
        if item["type"] == "message" and item["role"] == "assistant" and item["content"]:
            return shortened("\n".join(_part(part) for part in item["content"]), MAX_TEXT // 2)
    return ""
