"""Values that are generated for a schema are valid under it, and always the same."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel, Field

from fake_proto.generate import value_for


class Step(BaseModel):
    explanation: str
    output: str


class Reasoning(BaseModel):
    steps: list[Step]
    final_answer: str


class Node(BaseModel):
    name: str
    parent: Node | None
    children: list[Node]


class Order(BaseModel):
    kind: Literal["buy", "sell"]
    price: float = Field(gt=0.25, lt=0.75)
    count: int = Field(ge=10, multiple_of=4)
    code: str = Field(pattern=r"^[A-Z]{3}-\d+$")
    note: str | None


SCHEMAS: list[Any] = [
    *(to_strict_json_schema(model) for model in (Step, Reasoning, Node, Order)),
    {"type": "object"},
    {"type": "object", "minProperties": 2},
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "b"]},
    {"type": ["null", "integer"], "minimum": 3},
    {"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True},
    {"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}], "items": False},
    {"type": "string", "minLength": 9, "maxLength": 9},
    {"type": "string", "format": "date-time"},
    {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/one"}], "$defs": {"one": {"enum": ["x"]}}},
    {"allOf": [{"properties": {"a": {"type": "number"}}}, {"required": ["a"]}], "type": "object"},
    {"type": "number", "exclusiveMaximum": -2},
    {},
    True,
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_a_value_is_valid_under_its_schema(schema: Any) -> None:
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    validator.validate(value_for(schema))


@given(low=st.integers(-50, 50), room=st.integers(1, 50), step=st.integers(1, 5), strict=st.booleans())
def test_whole_numbers_keep_to_their_bounds(low: int, room: int, step: int, strict: bool) -> None:
    least = "exclusiveMinimum" if strict else "minimum"
    schema = {"type": "integer", least: low, "maximum": low + room * step + step, "multipleOf": step}
    Draft202012Validator(schema).validate(value_for(schema))


def test_a_schema_that_requires_itself_comes_to_an_end() -> None:
    value_for({"type": "object", "properties": {"me": {"$ref": "#"}}, "required": ["me"]})
