"""The images in a session's entries: each is stored once, under its digest, and the entries have its name in its place
until they are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from codex_proxy.parts.sessions.sessions import CallResult, Content, Entry, UserMessage

MIN_CHARS: Final = 1024
"""Characters of an image's address from which on it is stored apart: a web address stays in its place."""
_MARK: Final = "stored-image:"
"""How a name begins: no address that a client may give does."""


class Image(msgspec.Struct, frozen=True):
    """The address of an image: its data."""

    url: str


def without_images(entry: Entry, session: str) -> tuple[Entry, dict[str, Image]]:
    """Returns an entry of a session with names in place of its large images, and these by their ids."""
    found: dict[str, Image] = {}

    def name_of(url: str) -> str:
        if len(url) < MIN_CHARS:
            return url
        id = f"{session}/{hashlib.sha256(url.encode()).hexdigest()[:32]}"
        found[id] = Image(url)
        return _MARK + id

    return _with_urls(entry, name_of), found


def image_ids(entries: Iterable[Entry]) -> set[str]:
    """Returns the ids of the images whose names the entries have."""
    urls = (
        part["image_url"] for entry in entries for part in _content(entry) if part["type"] == "input_image"
    )
    return {url.removeprefix(_MARK) for url in urls if url.startswith(_MARK)}


def with_images(entry: Entry, images: Mapping[str, Image]) -> Entry:
    """Returns an entry with the images, by their ids, in place of their names."""

    def url_of(name: str) -> str:
        image = images.get(name.removeprefix(_MARK)) if name.startswith(_MARK) else None
        return name if image is None else image.url

    return _with_urls(entry, url_of)


def _content(entry: Entry) -> Content:
    if isinstance(entry.item, UserMessage):
        return entry.item.content
    output = entry.item.output if isinstance(entry.item, CallResult) else None
    return output if isinstance(output, tuple) else ()


def _with_urls(entry: Entry, change: Callable[[str], str]) -> Entry:
    content = _content(entry)
    if all(part["type"] != "input_image" for part in content):
        return entry
    changed = tuple(_part(part, change) for part in content)
    if isinstance(entry.item, CallResult):
        return replace(entry, item=replace(entry.item, output=changed))
    return replace(entry, item=UserMessage(changed))


def _part(part: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    return {**part, "image_url": change(part["image_url"])} if part["type"] == "input_image" else part
