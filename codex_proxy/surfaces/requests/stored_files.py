"""Uploaded files in requests: a part that names a file by `file_id` becomes one that contains it, so that every later
reader sees what a client would have sent itself. What names no uploaded file stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from codex_proxy.core.faults import bad_request
from codex_proxy.core.json_values import text_at
from codex_proxy.core.media import GivenFile, encode_base64
from codex_proxy.surfaces.requests.body import decode_object

MARK: Final = b"file_id"
"""What a body has that names a file."""
_LISTS: Final = ("messages", "input", "items", "events", "initial_events")
"""The fields of a body with messages, items or events."""
_INNER: Final = ("content", "output", "source")
"""The fields below which a message, an item or a part may have further parts."""
_MAX_DEPTH: Final = 8


def named_files(body: bytes) -> Counter[str]:
    """Returns how often a JSON body names which files. Raises `Fault` if it is no JSON object."""
    value = decode_object(body)
    return Counter(id for name in _LISTS for _, part in _parts(value.get(name), name) if (id := _id_of(part)))


def with_files(body: bytes, files: Mapping[str, GivenFile]) -> tuple[bytes, dict[str, str]]:
    """Returns the body with the contents of `files` in place of their ids, and by the path of each content the path of
    the field that had the id. Raises `Fault` for a part that has another source, too.
    """
    sent: dict[str, str] = {}
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name in _LISTS:
        if name in fields and MARK in bytes(fields[name]):
            value = msgspec.json.decode(fields[name])
            for path, part in _parts(value, name):
                if (file := files.get(_id_of(part))) is not None:
                    content, id = _put(part, file, path)
                    sent[content] = id
            fields[name] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode(fields), sent


def _parts(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields all objects that may be parts, with their paths. Arguments of calls, schemas and metadata are none."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        yield path, value
        for name in _INNER:
            if name in value:
                yield from _parts(value[name], f"{path}.{name}", depth + 1)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _parts(each, f"{path}[{index}]", depth + 1)


def _place_of(part: dict[str, Any]) -> Any:
    """Returns the object in a part that has the id: the part itself in Responses."""
    kind = text_at(part, "type")
    if kind in ("input_file", "input_image"):
        return part
    if kind == "file":  # of Chat Completions
        return part.get("file")
    source = part.get("source") if kind in ("document", "image") else None
    return source if isinstance(source, dict) and text_at(source, "type") == "file" else None


def _id_of(part: dict[str, Any]) -> str:
    place = _place_of(part)
    return text_at(place, "file_id") if isinstance(place, dict) else ""


_PLACES: Final = {"file": "file", "document": "source", "image": "source"}
"""The fields of parts that have the id."""
_OTHERS: Final = ("file_data", "file_url", "image_url", "data", "url")
"""The fields beside an id that have a source, too."""


def _check_alone(place: dict[str, Any], path: str) -> None:
    """Raises `Fault` for a part that has another source, too. `path`: of the object with the id."""
    if second := next((name for name in _OTHERS if place.get(name)), None):
        message = f"'file_id' and '{second}' are two sources. Send one of them."
        raise bad_request(message, f"{path}.{second}")


def _url_of(file: GivenFile) -> str:
    return f"data:{file.media_type};base64,{encode_base64(file.data)}"


def _put(part: dict[str, Any], file: GivenFile, path: str) -> tuple[str, str]:
    """Puts a file into the part that names it. Returns the paths of the content, and of the id that was there."""
    kind, place = part["type"], _place_of(part)
    where = f"{path}.{_PLACES[kind]}" if kind in _PLACES else path
    _check_alone(place, where)
    if kind in ("document", "image"):
        data = encode_base64(file.data)
        part["source"] = {"type": "base64", "media_type": file.media_type, "data": data}
        if kind == "document" and not part.get("title"):
            part["title"] = file.name
        return f"{where}.data", f"{where}.file_id"
    del place["file_id"]
    content = "image_url" if kind == "input_image" else "file_data"
    place[content] = _url_of(file)
    if kind != "input_image" and not place.get("filename"):
        place["filename"] = file.name
    return f"{where}.{content}", f"{where}.file_id"
