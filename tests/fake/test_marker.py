"""The marker in a prompt."""

from __future__ import annotations

from fake_proto.marker import find_marker


def test_a_text_without_a_marker_has_none() -> None:
    assert find_marker("please [[fake]] it") is None


def test_the_last_of_several_markers_counts() -> None:
    found = find_marker("[[fake:text]] and then [[fake:count n=3]] x")
    assert found is not None
    assert (found.name, found.options) == ("count", {"n": "3"})


def test_a_quoted_value_may_hold_spaces_brackets_and_escapes() -> None:
    found = find_marker(r'[[fake:text say="a \"b\" ]] \u00e9\n" n=2]]')
    assert found is not None
    assert found.options == {"say": 'a "b" ]] é\n', "n": "2"}


def test_a_single_quoted_value_is_literal_so_that_json_needs_no_escapes() -> None:
    found = find_marker("""[[fake:tool_call args='{"city": "Bonn"}']]""")
    assert found is not None
    assert found.options["args"] == '{"city": "Bonn"}'


def test_an_empty_value_is_an_empty_text() -> None:
    found = find_marker("""[[fake:text say=""]]""")
    assert found is not None
    assert found.options == {"say": ""}


def test_the_marker_says_where_it_ended() -> None:
    text = "go [[fake:tool_call]] call_1_0 said sunny"
    found = find_marker(text)
    assert found is not None
    assert text[found.end :] == " call_1_0 said sunny"
