"""Converts the content of a message to text. What this server's APIs cannot carry in an answer, such as an image or a
type of a later version, is named in a sentence, so that nothing that an agent says is lost without a word.
"""

from __future__ import annotations

import re
from typing import Any, Final

from codex_proxy.core.json_values import object_at, text_at
from codex_proxy.core.shown_text import one_line

_NAMED: Final = {"image": "an image", "audio": "audio", "resource": "a file", "resource_link": "a link"}
_IN_BRACKETS: Final = re.compile(r"([\[\]\\])")
_IN_ADDRESSES: Final = str.maketrans({char: f"%{ord(char):02X}" for char in " \t\r\n()<>"})
_SHOWABLE: Final = ("http://", "https://")


def is_text(content: Any) -> bool:
    return (
        isinstance(content, dict) and content.get("type") == "text" and isinstance(content.get("text"), str)
    )


def text_of(content: Any) -> str:
    """Returns a text as it is, of a resource its text, of anything with an address a Markdown link, and of the rest a
    sentence; empty if there is no content.
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
