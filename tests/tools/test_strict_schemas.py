"""OpenAI's subset of JSON Schema: what is in it, what can be made to fit, and how that is undone in an answer."""

from __future__ import annotations

import json
from enum import Enum
from functools import partial
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from codex_proxy.tools.schemas import violation
from codex_proxy.tools.strict_schemas import (
    WRAPPER,
    StrictForm,
    is_strict_schema,
    strict_form,
    undo_strict_form,
)
from tests.cpu_time import assert_cpu_time_below

DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


def raw(schema: Any) -> bytes:
    return json.dumps(schema).encode()


def closed_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def object_schema(*required: str, **properties: Any) -> dict[str, Any]:
    """An object whose other properties are optional."""
    return {"type": "object", "properties": properties, "required": list(required)}


def in_strict_form(schema: Any) -> Any:
    """The strict form."""
    form = strict_form(raw(schema))
    assert form is not None
    assert is_strict_schema(form.schema)
    return json.loads(form.schema)


STRING = {"type": "string"}
NODE = closed_object(next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})


def nested_object(levels: int) -> dict[str, Any]:
    schema = closed_object()
    for _ in range(levels - 1):
        schema = closed_object(a=schema)
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        closed_object(),
        closed_object(a=STRING, b={"type": ["string", "null"], "description": "x"}),
        closed_object(a={"type": "array", "items": closed_object(b=STRING), "minItems": 1}),
        closed_object(a={"anyOf": [STRING, closed_object(b=STRING)]}),
        closed_object(a={"type": "string", "enum": ["x"]}, b={"const": 1}),
        closed_object(a={"type": "string", "pattern": "^x", "format": "date-time"}),
        {**closed_object(a={"$ref": "#/$defs/node"}), "$defs": {"node": NODE}},
        {**closed_object(a={"$ref": "#/definitions/node"}), "definitions": {"node": closed_object()}},
        {**DRAFT_7, **closed_object(a=STRING), "title": "T"},
        nested_object(10),
    ],
)
def test_a_schema_of_the_subset_is_strict(schema: Any) -> None:
    assert is_strict_schema(raw(schema))


@pytest.mark.parametrize(
    "schema",
    [
        True,
        [],
        {},
        STRING,
        {"anyOf": [closed_object()]},
        {**closed_object(), "anyOf": [closed_object()]},
        {"$ref": "#/$defs/a", "$defs": {"a": closed_object()}},
        {"type": "object"},
        {**closed_object(a=STRING), "additionalProperties": True},
        {**closed_object(a=STRING), "required": []},
        {**closed_object(a=STRING), "required": ["a", "b"]},
        {**closed_object(a=STRING), "required": ["b"]},
        closed_object(a={"type": "object"}),
        closed_object(a={"type": ["object", "null"]}),
        closed_object(a={"properties": {}}),
        closed_object(a={}),
        closed_object(a=True),
        closed_object(a={"type": "array"}),
        closed_object(a={"type": "array", "items": {"type": "object"}}),
        closed_object(a={"anyOf": [{"type": "object"}]}),
        closed_object(a={"$ref": "#/$defs/a", "description": "x"}),
        closed_object(a={"$ref": "https://example.com/x"}),
        {**closed_object(a=STRING), "$defs": {"b": {"type": "object"}}},
        closed_object(a={"type": "string", "format": "uri"}),
        closed_object(a={"type": "string", "enum": 5}),
        *(
            closed_object(a={**STRING, keyword: value})
            for keyword, value in {
                "allOf": [STRING],
                "oneOf": [STRING],
                "not": STRING,
                "if": STRING,
                "default": "x",
                "minLength": 1,
                "patternProperties": {},
                "prefixItems": [STRING],
                "uniqueItems": True,
                "x-own": 1,
            }.items()
        ),
        nested_object(11),
        closed_object(**{f"p{n}": STRING for n in range(5_001)}),
        closed_object(a={"type": "integer", "enum": list(range(1_001))}),
    ],
)
def test_a_schema_outside_of_the_subset_is_not_strict(schema: Any) -> None:
    assert not is_strict_schema(raw(schema))


def test_an_object_that_says_nothing_of_further_properties_is_closed() -> None:
    inner = {"type": "object", "properties": {"b": STRING}, "required": ["b"]}
    given = {"type": "object", "properties": {"a": {"type": "array", "items": inner}}, "required": ["a"]}
    assert in_strict_form(given) == closed_object(a={"type": "array", "items": closed_object(b=STRING)})


def test_a_schema_that_is_strict_stays_as_it_is() -> None:
    assert strict_form(raw(closed_object(a=STRING))) == StrictForm(raw(closed_object(a=STRING)))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        {**closed_object(a=STRING), "additionalProperties": True},
        {**closed_object(a=STRING), "additionalProperties": STRING},
        {**object_schema(a=STRING), "additionalProperties": STRING},
        {**object_schema(a=STRING), "patternProperties": {"x": STRING}},
        {**object_schema(a=STRING), "required": ["b"]},
        {**object_schema(a=STRING), "required": [1]},
        object_schema("a", a={"type": "object"}),
        object_schema("a", a={"oneOf": [STRING]}),
        object_schema(a={"not": STRING}),
        object_schema(a={**STRING, "minLength": 1}),
        object_schema(a=True),
        object_schema("a", a={**object_schema("b", b=STRING), "anyOf": [object_schema("b", b=STRING)]}),
        object_schema("a", a={"type": "array", "items": STRING, "anyOf": [STRING]}),
        object_schema("a", a={"allOf": [object_schema("b", b=STRING), object_schema("c", c=STRING)]}),
        object_schema("a", a={"allOf": [STRING], "minLength": 1}),
        object_schema("a", a={"$ref": "#/$defs/a", "minLength": 1}),
        object_schema(**{f"p{n}": STRING for n in range(5_001)}),
        {**object_schema(a={"$ref": "#/$defs/a"}), "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {
            **object_schema(a={"$ref": "#/$defs/a"}),
            "$defs": {"a": {"$id": "x", "items": STRING, "type": "array"}},
        },
        object_schema(a=closed_object(x=STRING), b={"$ref": "#/properties/a"}),
        object_schema(a={"$ref": "#/$defs/nowhere"}),
    ],
)
def test_a_schema_of_which_no_closed_one_says_the_same_has_no_strict_form(schema: Any) -> None:
    assert strict_form(raw(schema)) is None


def test_a_wide_schema_is_recognised_in_no_time() -> None:
    schema = raw(closed_object(**{f"p{n}": STRING for n in range(4_900)}))
    assert strict_form(schema) == StrictForm(schema)
    assert_cpu_time_below(0.5, lambda: strict_form(schema))


@pytest.mark.parametrize("schema", [b"{", b'{"a":' * 5000 + b"1" + b"}" * 5000])
def test_what_is_no_json_is_not_strict(schema: bytes) -> None:
    assert not is_strict_schema(schema)


# --- optional properties ---------------------------------------------------------------------------

NULL = {"type": "null"}
COLOUR = {"enum": ["red"]}


@pytest.mark.parametrize(
    ("optional", "or_null"),
    [
        (STRING, {"type": ["string", "null"]}),
        (
            {"type": ["string", "integer"], "title": "T"},
            {"type": ["string", "integer", "null"], "title": "T"},
        ),
        ({"type": "string", "enum": ["x"]}, {"type": ["string", "null"], "enum": ["x", None]}),
        (COLOUR, {"enum": ["red", None]}),
        ({"const": 1}, {"anyOf": [{"const": 1}, NULL]}),
        ({"anyOf": [STRING, COLOUR]}, {"anyOf": [STRING, COLOUR, NULL]}),
        ({"$ref": "#/$defs/colour"}, {"anyOf": [{"$ref": "#/$defs/colour"}, NULL]}),
        ({"type": "array", "items": STRING}, {"anyOf": [{"type": "array", "items": STRING}, NULL]}),
        (object_schema("a", a=STRING), {"anyOf": [closed_object(a=STRING), NULL]}),
    ],
)
def test_an_optional_property_is_required_and_may_be_null(optional: Any, or_null: Any) -> None:
    given = {**object_schema("a", a=STRING, b=optional), "$defs": {"colour": COLOUR}}
    assert in_strict_form(given) == {**closed_object(a=STRING, b=or_null), "$defs": {"colour": COLOUR}}
    form = strict_form(raw(given))
    assert form is not None
    assert form.to_undo


def test_the_contracts_own_example_fits() -> None:
    given = {"type": "object", "properties": {"name": STRING, "age": {"type": "integer"}}}
    assert in_strict_form(given) == closed_object(
        name={"type": ["string", "null"]}, age={"type": ["integer", "null"]}
    )
    assert undo_strict_form(raw(given), '{"name": "Ada", "age": null}') == '{"name":"Ada"}'


def test_only_a_form_with_optional_properties_has_to_be_undone() -> None:
    form = strict_form(raw(object_schema("a", a=STRING)))
    assert form is not None
    assert not form.to_undo


NULLABLE = [
    NULL,
    {"type": ["string", "null"]},
    {"anyOf": [STRING, NULL]},
    {"enum": ["x", None]},
    {"const": None},
    {"$ref": "#/$defs/maybe"},
    {"anyOf": [STRING, {"$ref": "#/$defs/maybe"}]},
]
MAYBE = {"$defs": {"maybe": {"type": ["string", "null"]}}}


@pytest.mark.parametrize("nullable", NULLABLE)
def test_where_null_is_a_value_of_an_optional_property_its_value_is_wrapped(nullable: Any) -> None:
    given = {**object_schema("a", a=STRING, b=nullable), **MAYBE}
    in_form = in_strict_form(given)["properties"]["b"]
    assert in_form["anyOf"] == [closed_object(**{WRAPPER: nullable}), NULL]
    for said, undone in (
        ({"a": "x", "b": None}, {"a": "x"}),
        ({"a": "x", "b": {WRAPPER: None}}, {"a": "x", "b": None}),
        ({"a": "x", "b": {WRAPPER: "x"}}, {"a": "x", "b": "x"}),
    ):
        assert json.loads(undo_strict_form(raw(given), json.dumps(said))) == undone


@pytest.mark.parametrize("nullable", NULLABLE)
def test_where_null_is_the_default_too_there_is_nothing_to_undo(nullable: Any) -> None:
    """As pydantic has it: `name: str | None = None`."""
    form = strict_form(raw({**object_schema("a", a=STRING, b={**nullable, "default": None}), **MAYBE}))
    assert form is not None
    assert not form.to_undo
    shown = {"anyOf": [nullable]} if "$ref" in nullable else nullable
    assert json.loads(form.schema)["properties"]["b"] == {**shown, "description": "Default: null"}


def test_a_required_property_that_may_be_null_is_unchanged() -> None:
    for nullable in NULLABLE:
        given = {**object_schema("a", a=nullable), **MAYBE}
        assert in_strict_form(given)["properties"]["a"] == nullable


@pytest.mark.parametrize(
    ("annotated", "in_form"),
    [
        ({**STRING, "default": "x"}, {**STRING, "description": 'Default: "x"'}),
        (
            {**STRING, "description": "A name.", "examples": ["Ada"], "deprecated": True, "readOnly": True},
            {**STRING, "description": 'A name.\nExamples: ["Ada"]'},
        ),
        (
            {"$ref": "#/$defs/maybe", "description": "Who."},
            {"anyOf": [{"$ref": "#/$defs/maybe"}], "description": "Who."},
        ),
        (
            {"allOf": [{"$ref": "#/$defs/maybe"}], "default": "x"},
            {"anyOf": [{"$ref": "#/$defs/maybe"}], "description": 'Default: "x"'},
        ),
        (
            {"type": "array", "items": {**STRING, "default": ""}, "default": []},
            {
                "type": "array",
                "items": {**STRING, "description": 'Default: ""'},
                "description": "Default: []",
            },
        ),
    ],
)
def test_annotations_are_reported_in_the_description(annotated: Any, in_form: Any) -> None:
    given = {**object_schema("a", a=annotated), **MAYBE}
    assert in_strict_form(given)["properties"]["a"] == in_form
    form = strict_form(raw(given))
    assert form is not None
    assert not form.to_undo


def test_a_property_that_is_called_as_an_annotation_is_a_property() -> None:
    given = object_schema("default", default=STRING, examples={"const": {"default": 1}})
    assert in_strict_form(given) == closed_object(
        default=STRING, examples={"anyOf": [{"const": {"default": 1}}, NULL]}
    )


def test_an_optional_property_with_a_default_is_left_out_by_null() -> None:
    given = object_schema("a", a=STRING, n={"type": "integer", "default": 5}, x={**STRING, "default": None})
    assert undo_strict_form(raw(given), '{"a":"x","n":null,"x":null}') == '{"a":"x"}'
    assert undo_strict_form(raw(given), '{"a":"x","n":5,"x":"y"}') == '{"a":"x","n":5,"x":"y"}'


def test_a_property_that_can_only_be_its_default_is_always_there() -> None:
    """As pydantic has the literals that tell its models apart, and does not require."""
    cat = object_schema("name", kind={"const": "cat", "default": "cat"}, name=STRING, age={"type": "integer"})
    dog = object_schema("name", kind={"enum": ["dog"], "default": "dog"}, name={"enum": ["Rex"]}, age=STRING)
    given = raw(object_schema("pets", pets={"type": "array", "items": {"anyOf": [cat, dog]}}))
    assert strict_form(given) is not None
    said = '{"pets":[{"kind":"cat","name":"a","age":null},{"kind":"dog","name":"Rex","age":null}]}'
    assert undo_strict_form(given, said) == (
        '{"pets":[{"kind":"cat","name":"a"},{"kind":"dog","name":"Rex"}]}'
    )


class _Colour(Enum):
    RED = "red"


class _Address(BaseModel):
    street: str = Field(description="With the number.", examples=["Main St. 1"])
    zip: str | None = None


class _Person(BaseModel):
    name: str
    nick: str | None
    age: int = 5
    colour: _Colour = _Colour.RED
    address: _Address = Field(default_factory=lambda: _Address(street="-"), description="Where.")
    other: list[_Address] | None = None
    tags: list[str] = []


def test_a_model_of_pydantics_fits_as_it_is() -> None:
    given = raw(_Person.model_json_schema())
    form = strict_form(given)
    assert form is not None
    said = {
        "name": "Ada", "nick": None, "age": None, "colour": None, "other": [{"street": "b", "zip": None}],
        "address": {"street": "a", "zip": "1"}, "tags": None,
    }  # fmt: skip
    assert violation(form.schema, json.dumps(said)) is None
    undone = undo_strict_form(given, json.dumps(said))
    assert _Person.model_validate_json(undone) == _Person(
        name="Ada", nick=None, address=_Address(street="a", zip="1"), other=[_Address(street="b")]
    )
    assert json.loads(undone).keys() == {"name", "nick", "address", "other"}


def test_a_null_that_the_type_refuses_is_none_of_the_values() -> None:
    assert strict_form(raw(object_schema(a={"type": "string", "enum": ["x", None]}))) is not None


KIND_A, KIND_B = ({"type": "string", "enum": [kind]} for kind in "ab")


@pytest.mark.parametrize(
    ("union", "fits"),
    [
        ([object_schema("a", a=STRING, b=STRING), object_schema("a", a=STRING, c=STRING)], True),
        (
            [
                object_schema("k", k=KIND_A, b=STRING),
                object_schema("k", "b", k=KIND_B, b={"type": ["string", "null"]}),
            ],
            True,
        ),
        (
            [
                object_schema("a", a=STRING, b=STRING),
                object_schema("a", "b", a=STRING, b={"type": ["string", "null"]}),
            ],
            False,
        ),
        ([object_schema("k", k=KIND_A, b=STRING), object_schema("k", k=KIND_A, b=COLOUR)], False),
        (
            [{"type": "array", "items": each} for each in (object_schema(a=STRING), object_schema(b=STRING))],
            False,
        ),
        ([{"type": "array", "items": each} for each in (object_schema(a=STRING), STRING)], True),
        ([object_schema(a=STRING), {"anyOf": [STRING, object_schema(b=STRING)]}], False),
    ],
)
def test_a_union_fits_where_its_branches_can_be_distinguished(union: list[Any], fits: bool) -> None:
    assert (strict_form(raw(object_schema("u", u={"anyOf": union}))) is not None) is fits


def test_in_a_union_only_the_nulls_of_the_branch_that_was_taken_go() -> None:
    union = [
        object_schema("k", k=KIND_A, b=STRING),
        object_schema("k", "b", k=KIND_B, b={"type": ["string", "null"]}),
    ]
    given = raw(object_schema("u", u={"type": "array", "items": {"anyOf": union}}))
    said = '{"u":[{"k":"a","b":null},{"k":"b","b":null}]}'
    assert undo_strict_form(given, said) == '{"u":[{"k":"a"},{"k":"b","b":null}]}'


def test_a_schema_that_contains_itself_is_undone_on_every_level() -> None:
    given = raw({**object_schema("tree", tree={"$ref": "#/$defs/node"}), "$defs": {"node": TREE}})
    assert strict_form(given) is not None
    said = '{"tree":{"name":"a","next":{"name":"b","next":null}}}'
    assert undo_strict_form(given, said) == '{"tree":{"name":"a","next":{"name":"b"}}}'
    root = raw(object_schema("name", name=STRING, next={"$ref": "#"}))
    assert strict_form(root) is not None
    assert (
        undo_strict_form(root, '{"name":"a","next":{"name":"b","next":null}}')
        == '{"name":"a","next":{"name":"b"}}'
    )


TREE = object_schema("name", name=STRING, next={"$ref": "#/$defs/node"})
PERSON = raw(
    object_schema(
        "name", name=STRING, age={"type": "number"}, at={"type": ["array"], "items": object_schema(a=STRING)}
    )
)


def test_an_answer_without_placeholders_stays_as_it_is() -> None:
    said = '{ "name": "Ada",\n "age": 1.50 }'
    assert undo_strict_form(PERSON, said) == said


@pytest.mark.parametrize(
    "number",
    ["1.50", "1e400", "-0", "123456789012345678901234567890", "0.1000000000000000055511151231257827"],
)
def test_keys_numbers_and_texts_stay_as_the_model_gave_them(number: str) -> None:
    said = f'{{"z": null, "at": null, "name": "\\u00e9 \U0001f600", "age": {number}, "x": [1.0]}}'
    assert undo_strict_form(PERSON, said) == f'{{"z":null,"name":"é \U0001f600","age":{number},"x":[1.0]}}'


@pytest.mark.parametrize(
    "text", ["", "Hello", "[]", "null", '{"at":null', '{"at":null,"age":NaN}', '{"at":null,"name":"\\ud800"}',
             "[" * 100_000, '{"name":[{"at":null}]}', '{"name":null}', '{"age":{"at":null}}']
)  # fmt: skip
def test_a_text_that_is_no_answer_under_the_form_stays_as_it_is(text: str) -> None:
    assert undo_strict_form(PERSON, text) == text


def test_a_large_schema_is_made_to_fit_in_bounded_time() -> None:
    wide = object_schema(**{f"p{n}": object_schema(a=STRING, b={"$ref": "#/$defs/x"}) for n in range(1_200)})
    names = [f"x{n}" for n in range(600)]
    unions = {name: {"anyOf": [{"$ref": f"#/$defs/{each}"} for each in names[:3]]} for name in names}
    for schema in (
        {**wide, "$defs": {"x": STRING}},
        {**object_schema(a={"$ref": "#/$defs/x9"}), "$defs": unions},
    ):
        given = raw(schema)
        assert_cpu_time_below(0.5, partial(strict_form, given))


# --- any schema and any answer ---------------------------------------------------------------------

Case = tuple[dict[str, Any], Any, Any]
"""A schema, a value that is valid under it, and the same as it is said under the strict form."""


DEFS = {"$defs": {"word": {"type": "string", "enum": ["yes", "no"]}}}
LEAVES: list[tuple[dict[str, Any], list[Any]]] = [
    ({"type": "string"}, ["", "é\n"]),
    ({"type": ["integer", "boolean"]}, [0, -(10**20), True]),
    ({"type": ["string", "null"]}, ["a", None]),
    ({"enum": ["x", 1]}, ["x", 1]),
    ({"const": "c"}, ["c"]),
    ({"$ref": "#/$defs/word"}, ["yes", "no"]),
    ({"type": "null"}, [None]),
]


HOW = st.tuples(st.sampled_from(["required", "optional", "absent"]), st.booleans())
"""What a property is, and whether it has a default."""


@st.composite
def leaves(draw: st.DrawFn) -> Case:
    schema, values = draw(st.sampled_from(LEAVES))
    value = draw(st.sampled_from(values))
    return schema, value, value


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    drawn = draw(st.dictionaries(st.sampled_from("abcd"), st.tuples(inner, HOW), min_size=1))
    properties: dict[str, Any] = {}
    value: dict[str, Any] = {}
    embedded: dict[str, Any] = {}
    for name, ((schema, inside, shown), (how, default)) in drawn.items():
        nullable = violation(raw({**schema, **DEFS}), "null") is None
        null_by_default = default and nullable
        properties[name] = {**schema, "default": None if nullable else 7} if default else schema
        if how == "absent" and null_by_default:
            value[name] = embedded[name] = None  # which says the same
        elif how == "absent":
            embedded[name] = None
        else:
            value[name] = inside
            wrapped = how == "optional" and nullable and not default
            embedded[name] = {WRAPPER: shown} if wrapped else shown
    schema = {"type": "object", "properties": properties}
    required = [name for name, (_, (how, _)) in drawn.items() if how == "required"]
    says_required, says_closed = draw(st.tuples(st.booleans(), st.booleans()))
    if required or says_required:
        schema["required"] = required
    if says_closed:
        schema["additionalProperties"] = False
    return schema, value, embedded


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    schema, value, embedded = draw(inner)
    times = draw(st.integers(0, 2))
    return {"type": "array", "items": schema}, [value] * times, [embedded] * times


@st.composite
def unions(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    cases = draw(st.lists(inner, min_size=1, max_size=3))
    _, value, embedded = draw(st.sampled_from(cases))
    return {"anyOf": [case[0] for case in cases]}, value, embedded


CASES = st.recursive(
    leaves(), lambda inner: st.one_of(objects(inner), arrays(inner), unions(inner)), max_leaves=8
)


def undo(form: StrictForm, schema: Any, text: str) -> str:
    return undo_strict_form(raw(schema), text) if form.to_undo else text


@given(objects(CASES))
def test_placeholders_of_the_strict_form_are_removed_from_every_answer(case: Case) -> None:
    schema, value, embedded = case
    schema |= DEFS
    form = strict_form(raw(schema))
    assume(form is not None)
    assert form is not None
    assert is_strict_schema(form.schema)
    assert violation(raw(schema), json.dumps(value)) is None
    assert violation(form.schema, json.dumps(embedded)) is None
    undone = undo(form, schema, json.dumps(embedded))
    assert json.loads(undone) == value
    assert violation(raw(schema), undone) is None


@given(objects(CASES), st.data())
def test_whatever_is_valid_under_the_form_is_valid_under_the_schema_once_undone(
    case: Case, data: st.DataObject
) -> None:
    """Also what says null where nothing was said of it, or takes another branch."""
    schema, _, embedded = case
    schema |= DEFS
    form = strict_form(raw(schema))
    assume(form is not None)
    assert form is not None
    said = json.dumps(data.draw(changed(embedded)))
    if violation(form.schema, said) is None:
        assert violation(raw(schema), undo(form, schema, said)) is None


def changed(value: Any) -> st.SearchStrategy[Any]:
    """The value with some of its parts replaced by null."""
    if isinstance(value, dict):
        whole: st.SearchStrategy[Any] = st.fixed_dictionaries(
            {name: changed(each) for name, each in value.items()}
        )
    elif isinstance(value, list):
        whole = st.tuples(*map(changed, value)).map(list)
    else:
        whole = st.just(value)
    return st.one_of(whole, whole, st.none())
