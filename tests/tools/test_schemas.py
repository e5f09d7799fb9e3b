"""JSON schemas: what is one, what breaks it, and what no schema can do."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.tools.schemas import (
    MAX_SCHEMA_BYTES,
    MAX_TEXT,
    MAX_VALUE,
    QUICK_SCHEMA,
    NotASchemaError,
    check_schema,
    is_quick,
    violation,
)
from codex_proxy.tools.strict_schemas import strict_form
from tests.cpu_time import assert_cpu_time_below


def raw(schema: Any) -> bytes:
    return json.dumps(schema).encode()


def wrong(schema: Any, value: Any) -> str | None:
    return violation(raw(schema), json.dumps(value))


def refusal_of(schema: Any) -> str:
    with pytest.raises(NotASchemaError) as caught:
        check_schema(schema if isinstance(schema, bytes) else raw(schema))
    return str(caught.value)


DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

# --- what is a schema ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        CITY,
        {"definitions": {"a": {"type": "string"}}, "properties": {"x": {"$ref": "#/definitions/a"}}},
        {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
        {"$defs": {"a": {"$anchor": "here"}}, "$ref": "#here"},
        {"$id": "https://example.com/root", "$defs": {"a": {"$id": "inner"}}, "$ref": "inner"},
        {"properties": {"$ref": {"type": "string"}}},
        {"const": {"$ref": "https://example.com/data"}},
        {"pattern": r"^\p{L}+$"},
        {"$schema": "urn:a-schema-of-tomorrow"},
        {**DRAFT_7, "definitions": {"a": {}}, "items": [{"$ref": "#/definitions/a"}]},
        {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True},
    ],
)
def test_a_schema_that_can_be_checked_is_accepted(schema: Any) -> None:
    check_schema(raw(schema))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (b"{", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[]", "it is neither an object nor a boolean"),
        (b'"string"', "it is neither an object nor a boolean"),
        ({"type": "strnig"}, '$.type: "strnig"'),
        ({"properties": {"a": {"type": 5}}}, "$.properties.a.type"),
        ({"properties": [1]}, "$.properties"),
        ({"required": "city"}, "$.required"),
        ({"$schema": 5}, "$.$schema"),
        ({"items": [{}]}, "$.items"),
        ({"$ref": "#/$defs/nowhere"}, "'/$defs/nowhere' does not exist"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(schema: Any, why: str) -> None:
    assert why in refusal_of(schema)


def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    """Whether its JSON can still be read is a matter of Python's release."""
    assert refusal_of(b'{"items":' * 5000 + b"{}" + b"}" * 5000)


def test_a_schema_may_be_nested_as_deep_as_anybody_writes_them() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        schema = {"type": "object", "properties": {"a": schema}}
    check_schema(raw(schema))


def test_a_schema_that_is_nested_deeper_than_python_can_follow_is_refused() -> None:
    schema = b'{"items":' * 400 + b"{}" + b"}" * 400
    assert refusal_of(schema) == "it is nested too deeply"
    assert "nested too deeply" in str(violation(schema, "1"))


def test_a_schema_that_is_too_large_is_refused() -> None:
    assert "larger than 128 KiB" in refusal_of({"description": "x" * MAX_SCHEMA_BYTES})
    check_schema(raw({"description": "x" * (MAX_SCHEMA_BYTES - 100)}))


# --- are not fetched --------------------------------------------------------------------------


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every socket that was asked for; none is given."""
    asked: list[Any] = []

    def guarded(*arguments: Any, **named: Any) -> None:
        asked.append(arguments)
        raise OSError("no network here")

    monkeypatch.setattr(socket, "socket", guarded)
    monkeypatch.setattr(socket, "getaddrinfo", guarded)
    monkeypatch.setattr(socket, "create_connection", guarded)
    return asked


@pytest.mark.parametrize("draft", [{}, DRAFT_7])
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
@pytest.mark.parametrize(
    "place", ["http://127.0.0.1:1/s", "https://example.com/s", "//example.com/s", "file:///etc/passwd", "s"]
)
def test_a_reference_to_elsewhere_is_refused_and_never_fetched(
    no_network: list[Any], draft: dict[str, Any], keyword: str, place: str
) -> None:
    schema = {**draft, "properties": {"a": {keyword: place}}}
    if (draft, keyword) != (DRAFT_7, "$dynamicRef"):  # which draft 7 does not know
        assert "are not fetched" in refusal_of(schema) or "is not in it" in refusal_of(schema)
    wrong(schema, {"a": 1})
    assert no_network == []


def test_the_metaschemas_of_the_drafts_are_known_without_being_fetched(no_network: list[Any]) -> None:
    assert wrong({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": "object"}) is None
    assert wrong({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": 5}) is not None
    assert no_network == []


# --- what breaks a schema ------------------------------------------------------------------------


def test_a_text_that_follows_the_schema_is_not_wrong() -> None:
    assert wrong(CITY, {"city": "Paris"}) is None


@pytest.mark.parametrize(
    ("schema", "value", "sentence"),
    [
        (CITY, {}, 'at $: "city" is a required property'),
        (CITY, {"city": 1}, 'at $.city: 1 is not of type "string"'),
        ({"items": {"enum": ["a"]}}, ["a", "b"], 'at $[1]: "b" is not one of "a"'),
        (False, 1, "at $: False schema does not allow 1"),
        ({"pattern": "^a+$"}, "b", 'at $: "b" does not match "^a+$"'),
        (
            {**CITY, "additionalProperties": False},
            {"city": "x", "y": 1},
            "at $: Additional properties are not allowed ('y' was unexpected)",
        ),
        ({"additionalProperties": {"type": "string"}}, {"y": 1}, 'at $.y: 1 is not of type "string"'),
        ({"patternProperties": {"^x": {"type": "string"}}}, {"xy": 1}, 'at $.xy: 1 is not of type "string"'),
        ({"uniqueItems": True}, [1, {}, 1.0], "at $: [1,{},1.0] has non-unique elements"),
        ({**DRAFT_7, "items": [{"type": "string"}]}, [1], 'at $[0]: 1 is not of type "string"'),
        (
            {"$ref": "#/definitions/a", "definitions": {"a": {"minimum": 2}}},
            1,
            "at $: 1 is less than the minimum of 2",
        ),
        ({"unevaluatedProperties": False}, {"y": 1}, "at $: Unevaluated properties are not allowed"),
    ],
)
def test_the_error_names_the_place_of_what_is_wrong(schema: Any, value: Any, sentence: str) -> None:
    assert str(wrong(schema, value)).startswith(sentence)


def test_patterns_and_named_properties_decide_together_what_is_additional() -> None:
    schema = {"properties": {"a": {}}, "patternProperties": {"^x": {}}, "additionalProperties": False}
    assert wrong(schema, {"a": 1, "xyz": 2}) is None
    assert (
        wrong(schema, {"a": 1, "yz": 2})
        == "at $: Additional properties are not allowed ('yz' was unexpected)"
    )


@pytest.mark.parametrize("text", ["", "{", "{'a':1}", '{"a":1}}', "NaN", '"\ud800"', "[" * 100_000])
def test_a_text_that_is_no_json_is_wrong(text: str) -> None:
    assert str(violation(b"true", text)).startswith("it is not valid JSON")


def test_a_message_repeats_only_the_beginning_of_what_was_wrong() -> None:
    said = str(wrong({"type": "number"}, "x" * 10_000))
    assert len(said) < MAX_VALUE + 20
    deep = str(wrong({"additionalProperties": False}, {"y" * 10_000: 1}))
    assert len(deep) < MAX_VALUE + 20


def test_each_text_is_checked_anew_under_a_cached_schema() -> None:
    assert [wrong(CITY, {"city": value}) is None for value in ("a", 1, "b", 2)] == [True, False, True, False]


# --- what no schema can do -----------------------------------------------------------------------

EVIL = "^(a+)+$"
LAUGHS = {"$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(60)} | {"a60": {}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": EVIL}, "a" * 50_000 + "b"),
        ({"patternProperties": {EVIL: {}}, "additionalProperties": False}, {"a" * 50_000 + "b": 1}),
        ({"propertyNames": {"pattern": EVIL}}, {"a" * 50_000 + "b": 1}),
        ({"patternProperties": {EVIL: {}}, "unevaluatedProperties": False}, {"a" * 5_000 + "b": 1}),
    ],
)
def test_a_pattern_that_backtracks_for_ever_elsewhere_is_checked(schema: Any, value: Any) -> None:
    assert str(wrong(schema, value)).startswith("at $")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": r"^(?=a)(a+)+$"}, "a" * 5_000 + "b"),
        ({"pattern": r"^(a+)+\1$"}, "a" * 5_000 + "b"),
        ({"patternProperties": {r"^(?!x)(a+)+$": False}}, {"a" * 5_000 + "b": 1}),
        ({"patternProperties": {r"(?=x)": False}, "unevaluatedProperties": False}, {"y": 1}),
        ({"pattern": r"[\]--a]"}, "c"),
    ],
)
def test_a_pattern_that_cannot_be_checked_without_danger_is_not_checked(schema: Any, value: Any) -> None:
    assert wrong(schema, value) is None


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        (r"^\d{4}-\d{2}$", "2024-05", "24-05"),
        (r"^[a-z0-9]+(?:-[a-z0-9]+)*$", "a-slug-1", "a--b"),
        (r"^--flag\[[a-z]\]$", "--flag[a]", "flag"),
        (r"^[\w.+-]+@[\w-]+\.\w+$", "me@example.org", "me@example"),
        ("needle", "a needle in hay", "hay"),
        ("^[[a]]$", "a]", "a"),
        ("^[a&&b]$", "&", "c"),
    ],
)
def test_a_common_pattern_is_checked(pattern: str, fits: str, fits_not: str) -> None:
    assert wrong({"pattern": pattern}, fits) is None
    assert wrong({"pattern": pattern}, fits_not) is not None


def test_a_pattern_that_is_not_checked_makes_no_property_additional() -> None:
    assert wrong({"patternProperties": {"(?=x)": {}}, "additionalProperties": False}, {"y": 1}) is None


MANY = "[" + ",".join(["-1"] * 200_000) + "]"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({**LAUGHS, "$ref": "#/$defs/a0"}, "1"),
        ({"$defs": {"a": {"allOf": [{"items": {"$ref": "#/$defs/a"}}] * 2}}, "$ref": "#/$defs/a"}, "[[[1]]]"),
        ({"$dynamicAnchor": "a", "items": {"$dynamicRef": "#a"}}, "[[[1]]]"),
        ({"$ref": "#"}, "1"),
        ({"allOf": [{"unevaluatedProperties": False}]}, "{}"),
        ({"$defs": {"a": {"$id": "b", "$ref": "#/c"}}, "c": {}}, "{}"),
        ({"uniqueItems": True}, "[" + ",".join(["{}"] * 300_000) + "]"),
        ({"items": {"enum": list(range(3_000))}}, MANY),
        ({"items": {"anyOf": [{"minimum": n} for n in range(500)]}}, MANY),
        ({"allOf": [{"additionalProperties": {}}] * 500}, json.dumps({str(n): 1 for n in range(50_000)})),
        ({"allOf": [{"pattern": f"{n}$"} for n in range(300)]}, '"' + "a" * 1_000_000 + '"'),
        ({"patternProperties": {f"{n}\\p{{L}}{{300}}$": {} for n in range(300)}}, '{"a":1}'),
        ({"pattern": "(a{1000}){1000}"}, '"a"'),
        ({"description": "x" * QUICK_SCHEMA}, "1"),
    ],
)
def test_a_check_that_may_take_long_is_not_quick(schema: Any, text: str) -> None:
    assert not is_quick(raw(schema), text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (CITY, '{"city":"Paris"}'),
        ({**CITY, "description": "x" * 4_000}, '{"city":"Paris"}'),
        (
            {"$defs": {"city": CITY}, "items": {"$ref": "#/$defs/city"}},
            "[" + '{"city":"Paris"},' * 100 + "{}]",
        ),
        ({"type": "object", "properties": {f"p{n}": CITY for n in range(100)}}, "{}"),
        ({"type": "string", "pattern": r"^[\w.+-]+@[\w-]+\.\w{2,20}$"}, '"me@example.org"'),
    ],
)
def test_a_common_check_is_quick(schema: Any, text: str) -> None:
    assert is_quick(raw(schema), text)


MIXED = [each for number in range(11_000) for each in (number, str(number))]


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "http://json-schema.org/draft-04/schema#", "enum": MIXED[:18_000]},
        {
            "$defs": {f"a{n}": {"$anchor": f"n{n}", "$ref": f"#n{n + 1}"} for n in range(500)}
            | {"x": {"$anchor": "n500"}}
        },
        {"$id": "http://x/", "$defs": {f"a{n}": {"$id": f"n{n}", "$ref": "n0"} for n in range(500)}},
        {"$defs": {f"a{n}": {"$dynamicAnchor": f"n{n}", "$dynamicRef": "#n0"} for n in range(500)}},
    ],
)
def test_schemas_that_took_quadratic_time_are_looked_at_at_once(schema: Any) -> None:
    assert_cpu_time_below(0.5, lambda: check_schema(raw(schema)))


def test_a_large_answer_of_a_common_kind_is_checked() -> None:
    row = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    rows = [{"name": "somebody", "age": 30} for _ in range(5_000)]
    assert wrong({"type": "array", "items": row}, rows) is None
    assert wrong({"type": "array", "items": row}, [*rows, {"age": "x"}]) is not None


def test_a_text_with_an_error_in_every_place_is_not_read_to_its_end() -> None:
    said = str(wrong({"items": {"type": "string"}}, [1] * 300_000))
    assert said.endswith('1 is not of type "string"')


def test_a_schema_that_refers_to_itself_without_end_holds_nothing_up() -> None:
    assert wrong({"$ref": "#"}, 1) is None


def test_a_text_that_is_too_long_is_not_checked() -> None:
    assert violation(b"true", " " * MAX_TEXT + "1") == "it is longer than 1,048,576 characters"
    assert violation(b"true", " " * (MAX_TEXT - 1) + "1") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)
KEYWORDS = st.sampled_from(
    [
        "type",
        "items",
        "properties",
        "$ref",
        "allOf",
        "enum",
        "required",
        "pattern",
        "uniqueItems",
        "$schema",
        "$id",
    ]
)
SCHEMAS = st.dictionaries(KEYWORDS, JSON | st.dictionaries(KEYWORDS, JSON, max_size=3), max_size=4)


@given(SCHEMAS, JSON)
def test_any_value_as_a_schema_gives_nothing_but_a_reason(schema: Any, value: Any) -> None:
    said = wrong(schema, value)
    strict_form(raw(schema))
    try:
        check_schema(raw(schema))
    except NotASchemaError as error:
        reason: str | None = str(error)
    else:
        reason = None
    assert reason != ""
    assert reason is None or said is not None
