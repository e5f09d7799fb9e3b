"""Finds and replaces the model's name in a body that is passed on. Raises `Fault` INVALID_REQUEST for a body that is
unreadable, or that can be read in more than one way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from codex_proxy.core.passing import Body
from codex_proxy.surfaces.answers.renderer import json_text
from codex_proxy.surfaces.requests.body import decode_object, missing_parameter, wrong_type
from codex_proxy.surfaces.requests.fields import Place, models_in, models_in_form

JSON: Final = "application/json"


class PassedBody(msgspec.Struct, frozen=True):
    """A body, and the `model` that it names (None: none)."""

    body: bytes | memoryview
    """The bytes of the body; a large form is in a file."""
    model: str | None
    content_type: str = JSON
    fields: dict[str, msgspec.Raw] | None = None
    """The fields of a JSON object; None for a form."""
    place: tuple[int, int] = (0, 0)
    """Where the model's name begins and ends in the bytes of a form."""
    named: tuple[tuple[str, str], ...] = ()
    """The other fields of a form that may name models, with their values."""

    def with_model(self, name: str) -> Body:
        """Returns the body with the model `name`, unchanged if it names that or none."""
        if self.model is None or not name or (name == self.model and self.fields is not None):
            return self.body if isinstance(self.body, bytes) else (self.body,)
        if self.fields is not None:
            return self.name_model(name)
        (start, end), whole = self.place, memoryview(self.body)
        pieces = (whole[:start], memoryview(name.encode()), whole[end:])
        return b"".join(pieces) if isinstance(self.body, bytes) else pieces

    def name_model(self, name: str) -> bytes:
        """Returns the JSON object with the model `name`, also if it named none."""
        return msgspec.json.encode({**(self.fields or {}), "model": msgspec.Raw(json_text(name))})

    def naming(self, name: str) -> PassedBody:
        """Returns this body, which names no model, with the model `name`; unchanged if that is empty. Raises `Fault`
        for a form.
        """
        if self.fields is None:
            raise missing_parameter("model")
        return msgspec.structs.replace(self, body=self.name_model(name), model=name) if name else self

    def other_models(self) -> Iterator[tuple[Place | str, str]]:
        """Yields the other fields that may name models, and these names."""
        return models_in_form(self.named) if self.fields is None else models_in(self.fields)


def json_body(body: bytes) -> PassedBody:
    """Reads JSON. Raises `Fault` if it is no object, or `model` no text."""
    model = decode_object(body).get("model")
    if model is not None and not isinstance(model, str):
        raise wrong_type("model", model, "a string")
    return PassedBody(body, model, JSON, msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
