"""Finds and replaces the model's name in a body (JSON or `multipart/form-data`) that is passed on. Raises `Fault`
INVALID_REQUEST for an unreadable body.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from codex_proxy.core.faults import bad_request
from codex_proxy.core.passing import Body
from codex_proxy.surfaces.base import json_text
from codex_proxy.surfaces.body import decode_object, wrong_type

MAX_NAME: Final = 1_000
MAX_PARTS: Final = 1_000
"""Maximum parts of a form before its model: each costs a search, and OpenAI's forms have some dozens."""
_FIRST_WINDOW: Final = 1 << 10
_LAST_WINDOW: Final = 1 << 20
"""The bytes searched at a time: a form may be in a file."""
_BOUNDARY: Final = re.compile(r'boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_MODEL_PART: Final = re.compile(
    rb'(?<=\n)content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;|\r\n|$)', re.IGNORECASE
)


class PassedBody(msgspec.Struct, frozen=True):
    """A body, and the `model` that it names (None: none)."""

    body: bytes | memoryview
    """The bytes of the body; a large form is in a file."""
    model: str | None
    fields: dict[str, msgspec.Raw] | None = None
    """The fields of a JSON object; None for a form."""
    place: tuple[int, int] = (0, 0)
    """Where the model's name begins and ends in the bytes of a form."""

    def with_model(self, name: str) -> Body:
        """Returns the body with the model `name`, unchanged if it names that or none."""
        if self.model is None or name == self.model or not name:
            return self.body if isinstance(self.body, bytes) else (self.body,)
        if self.fields is not None:
            return self.name_model(name)
        (start, end), whole = self.place, memoryview(self.body)
        pieces = (whole[:start], memoryview(name.encode()), whole[end:])
        return b"".join(pieces) if isinstance(self.body, bytes) else pieces

    def name_model(self, name: str) -> bytes:
        """Returns the JSON object with the model `name`, also if it named none."""
        return msgspec.json.encode({**(self.fields or {}), "model": msgspec.Raw(json_text(name))})


def json_body(body: bytes) -> PassedBody:
    """Reads JSON. Raises `Fault` if it is no object, or `model` no text."""
    model = decode_object(body).get("model")
    if model is not None and not isinstance(model, str):
        raise wrong_type("model", model, "a string")
    return PassedBody(body, model, msgspec.json.decode(body, type=dict[str, msgspec.Raw]))


def form_body(body: bytes | memoryview, content_type: str) -> PassedBody:
    """Reads a form. Raises `Fault` if `content_type` has no boundary, or the body no parts."""
    found, whole = _model_in_form(body, content_type)
    if found is None and not whole:
        raise bad_request("The request body is a form that ends too early.")
    return found or PassedBody(body, None)


def beginning_of_form(head: bytes, content_type: str) -> PassedBody | None:
    """Reads the beginning of a form; None if the model is not in it. Raises as `form_body`."""
    return _model_in_form(head, content_type)[0]


def _model_in_form(form: bytes | memoryview, content_type: str) -> tuple[PassedBody | None, bool]:
    """Returns the body with the model's place, if found, and whether the form ends there."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise bad_request("The content type of the form has no 'boundary'.")
    mark, body = b"--" + (found[1] or found[2]).encode(), memoryview(form)
    if bytes(body[: len(mark)]) != mark:
        raise bad_request("The request body is not a form with the boundary of its content type.")
    at = parts = 0
    while (head := at + len(mark) + 2) < len(body) and bytes(body[head - 2 : head]) != b"--":
        following = _find(b"\r\n" + mark, body, head)
        if following < 0:
            return None, False
        blank = _find(b"\r\n\r\n", body[:following], head)
        if blank >= 0 and _MODEL_PART.search(body, head, blank):
            value = bytes(body[blank + 4 : following])
            if len(value) > MAX_NAME:
                raise bad_request("Invalid 'model': the name is too long.", "model")
            name = value.decode("utf-8", "replace").strip()
            return PassedBody(form, name, None, (blank + 4, following)), True
        at, parts = following + 2, parts + 1
        if parts == MAX_PARTS:
            raise bad_request(f"The form has no field 'model' in its first {MAX_PARTS} parts. Send it first.")
    return None, True


def _find(what: bytes, body: memoryview, start: int) -> int:
    size = _FIRST_WINDOW  # small at first: a form may have thousands of small parts, or one that is large
    while start < len(body):
        found = bytes(body[start : start + size + len(what) - 1]).find(what)
        if found >= 0:
            return start + found
        start += size
        size = min(2 * size, _LAST_WINDOW)
    return -1
