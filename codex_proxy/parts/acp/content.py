"""Converts content blocks of ACP. What a session has not seen of a history becomes a prompt: a single message of the
user is passed on as it is; other histories, and what an agent would take for a command, become one text with labels.
What comes from the agent becomes text: what this server's APIs cannot carry in an answer, such as an image or a type of
a later version, is named in a sentence, so that nothing that an agent says is lost without a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.shared.conversions import mcp_content, message_for_agent
from codex_proxy.agents.shared.history_items import flatten
from codex_proxy.core.items import HistoryItem, HistoryMessage, TextPart, texts_of
from codex_proxy.core.json_values import object_at, text_at
from codex_proxy.core.shown_text import one_line
from codex_proxy.parts.acp.reported_calls import SERVER, agent_name

_NAMED: Final = {"image": "an image", "audio": "audio", "resource": "a file", "resource_link": "a link"}
_IN_BRACKETS: Final = re.compile(r"([\[\]\\])")
_IN_ADDRESSES: Final = str.maketrans({char: f"%{ord(char):02X}" for char in " \t\r\n()<>"})
_SHOWABLE: Final = ("http://", "https://")


def is_text(content: Any) -> bool:
    return (
        isinstance(content, dict) and content.get("type") == "text" and isinstance(content.get("text"), str)
    )


def text_of(content: Any) -> str:
    """Returns a content block, or a list of them, as text: text and text resources as they are, a block with an address
    as a Markdown link, any other as a sentence that names it. Returns an empty text if there is no content.
    """
    if isinstance(content, list):
        return "\n\n".join(text for each in content if (text := text_of(each)))
    if isinstance(content, str) or content is None:
        return content or ""
    kind, inner = text_at(content, "type"), object_at(content, "resource") or object_at(content)
    if "text" in inner and isinstance(inner["text"], str):
        return inner["text"]
    address, mime = text_at(inner, "uri"), text_at(inner, "mimeType")
    name = text_at(inner, "title") or text_at(inner, "name")
    if address and (kind == "resource_link" or address.startswith(_SHOWABLE)):
        is_image = kind == "image" or (kind == "resource" and mime.startswith("image/"))
        return (
            f"{'!' if is_image else ''}[{_in_brackets(name or address)}]({address.translate(_IN_ADDRESSES)})"
        )
    return _sentence(kind, name or address, mime, text_at(inner, "data") or text_at(inner, "blob"))


def _sentence(kind: str, name: str, mime: str, data: str) -> str:
    what = _NAMED.get(kind) or (f"content of the type {one_line(kind)}" if kind else "content")
    about = [one_line(each) for each in (name, mime) if each]
    if data:
        about.append(f"{len(data) * 3 // 4:,} bytes")
    more = f" ({', '.join(about)})" if about else ""
    return f"[The agent sent {what}{more}, which is not part of this answer.]"


def _in_brackets(name: str) -> str:
    return _IN_BRACKETS.sub(r"\\\1", " ".join(name.split()))


_COMMAND: Final = re.compile(r"[\s\u200b-\u200f\u2060\ufeff]*/")
"""Matches a text that an agent may take for a command."""


class Prompt(msgspec.Struct, frozen=True):
    """Content blocks, and the system prompt, which only a session's first prompt has."""

    blocks: list[dict[str, Any]]
    system: str = ""


def first_prompt(history: Sequence[HistoryItem], *, takes_system: bool) -> Prompt:
    """Returns a session's first prompt. `takes_system`: whether instructions at the beginning become its system
    prompt.
    """
    rest = _in_agents_words(history)
    system: list[str] = []
    while takes_system and rest and _is_instruction(rest[0]):
        system += _texts(rest.pop(0))
    prompt = _prompt(rest)
    return Prompt(prompt.blocks, "\n\n".join(system))


def later_prompt(items: Sequence[HistoryItem]) -> Prompt:
    """Returns the prompt for a session that has seen everything before `items`. Instructions after a single user
    message become texts that begin with `[system]`.
    """
    return _prompt(_in_agents_words(items))


def _prompt(items: Sequence[HistoryItem]) -> Prompt:
    first, *rest = items or (None,)
    if (
        isinstance(first, HistoryMessage)
        and first.role == "user"
        and all(map(_is_instruction, rest))
        and not any(_COMMAND.match(text) for text in _texts(first))
    ):
        instructions = [TextPart(f"[system]\n{text}") for each in rest for text in _texts(each)]
        return Prompt(mcp_content((*first.parts, *instructions)))
    text, images = flatten(items)
    return Prompt(mcp_content((TextPart(text), *images)))


def _in_agents_words(items: Sequence[HistoryItem]) -> list[HistoryItem]:
    """Returns the items, in which tools are named so that the agent's own of the same name is not meant."""
    return [
        message_for_agent(item, _words_for) if isinstance(item, HistoryMessage) else item for item in items
    ]


def _words_for(name: str) -> str:
    return f"`{agent_name(name)}` of the MCP server `{SERVER}`"


def _is_instruction(item: HistoryItem) -> bool:
    return isinstance(item, HistoryMessage) and item.role == "developer"


def _texts(item: HistoryItem) -> list[str]:
    parts = item.parts if isinstance(item, HistoryMessage) else ()
    return texts_of(parts)
