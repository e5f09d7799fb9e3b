"""What codex-proxy chat makes of texts of agents."""

from __future__ import annotations

import io
import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.text import Text

from codex_proxy.parts.terminal.text import Blocks, Safe, ask_lines, folded, markdown
from codex_proxy.parts.terminal.view import Transcript


def rendered(*shown: RenderableType) -> str:
    """What a terminal without colours gets."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=100)
    for each in shown:
        console.print(each, crop=False)
    return out.getvalue()


def is_harmless(shown: str) -> bool:
    left = set(shown) - set("\n\t\u200c\u200d")
    return all(char.isprintable() or unicodedata.category(char) == "Zs" for char in left)


def transcript_of(*events: dict[str, Any]) -> str:
    shown: list[RenderableType] = []
    transcript = Transcript(shown.append)
    for event in events:
        transcript.on_event(event)
    return rendered(*shown, *(Text(line) for _, line in transcript.live()))


def item_event(kind: str, **fields: Any) -> dict[str, Any]:
    item = {"id": "a_1", "status": "completed"} | fields
    return {"type": f"agent.session.turn.item.{kind}", "item": item}


@given(st.text())
def test_no_item_sends_a_terminal_anything_but_text_lines_and_tabs(text: str) -> None:
    said = [{"type": "output_text", "text": text}]
    call = {"server_label": text, "name": text, "arguments": {text: text}, "output": text}
    for fields in (
        {"type": "message", "role": "assistant", "content": said},
        {"type": "message", "role": "user", "content": said},
        {"type": "reasoning", "summary": said},
        {"type": "command_execution", "command": text, "cwd": text, "output": text, "exit_code": 1},
        {"type": "command_execution", "command": f"apply_patch {text}", "cwd": None, "output": text},
        {"type": "web_search_call", "action": {"query": text}},
        {"type": "mcp_call", **call},
        {"type": "function_call", **call},
        {"type": "create_subagent_call", "content": said},
        {"type": "agent_message", "sender_agent_id": text, "content": said},
        {"type": text, "of": text},
    ):
        assert is_harmless(transcript_of(item_event("done", **fields)))
        assert is_harmless(transcript_of(item_event("added", **fields)))


@given(st.text())
def test_a_question_shows_every_character(text: str) -> None:
    ask = {"name": "run_command", "server_label": "agent", "arguments": {"command": text, "cwd": None}}
    [_, *lines] = [line.plain for line in ask_lines(ask)]
    shown = [line.removeprefix("  command: ")[0 if not index else 4 :] for index, line in enumerate(lines)]
    assert "\n".join(shown) == "\n".join(
        "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
        for line in text.split("\n")
    )


CHANGE = {"path": "README", "kind": "add", "diff": "hi\n"}


def test_each_line_of_an_added_file_has_a_mark_in_a_question_also_one_that_begins_like_it() -> None:
    arguments = {"changes": [CHANGE | {"diff": "hi\n+ho\n"}], "reason": None}
    shown = ask_lines({"name": "apply_patch", "server_label": "agent", "arguments": arguments})
    assert [line.plain for line in shown][1:] == ["  add README", "  +hi", "  ++ho"]


def test_the_changes_of_a_patch_are_shown_as_a_diff() -> None:
    arguments = {
        "changes": [CHANGE, CHANGE | {"kind": None, "diff": "+hi\n", "moved_to": "README.md"}],
        "reason": None,
    }
    shown = ask_lines({"name": "apply_patch", "server_label": "agent", "arguments": arguments})
    assert [line.plain for line in shown] == [
        "The agent asks: apply_patch",
        *("  add README", "  +hi"),
        *("  update README", "  moved to README.md", "  +hi"),
    ]


@pytest.mark.parametrize(
    ("server", "name"), [("agent", "apply_patch"), ("agent", "other"), ("disk", "apply_patch")]
)
@pytest.mark.parametrize(
    "changes",
    [
        5,
        "x",
        ["x"],
        [{"file": 1}],
        {"path": "x"},
        [CHANGE | {"command": "rm"}],
        [CHANGE | {"path": 1}],
        [CHANGE, None],
    ],
)
def test_changes_that_are_none_are_shown_whole(server: str, name: str, changes: Any) -> None:
    ask = {"name": name, "server_label": server, "arguments": {"changes": changes}}
    first, *others = (line.plain for line in list(ask_lines(ask))[1:])
    text = "\n".join([first.removeprefix("  changes: "), *(line.removeprefix("    ") for line in others)])
    assert (text if isinstance(changes, str) else json.loads(text)) == changes


def test_a_tool_of_a_server_has_its_changes_shown_as_it_has_them() -> None:
    ask = {"name": "apply_patch", "server_label": "disk", "arguments": {"changes": [CHANGE]}}
    assert '  "path": "README"' in "\n".join(line.plain for line in ask_lines(ask))


@given(st.lists(st.sampled_from(["a", " b", "\n", "\n\n", "```", "~~~", "- c", "1. d", "    e", "> f"])))
def test_blocks_are_the_text_in_whatever_pieces_it_comes(pieces: list[str]) -> None:
    blocks = Blocks()
    found = [block for piece in pieces for block in blocks.feed(piece)] + [*blocks.end()]
    whole = Blocks()
    assert found == [*whole.feed("".join(pieces)), *whole.end()]
    assert "".join("".join(found).split()) == "".join("".join(pieces).split())


def test_a_block_ends_where_no_later_text_can_change_it() -> None:
    blocks = Blocks()
    text = "One\n\n- a\n\n- b\n\nTwo\n\n```\nx\n\ny\n```\n\nThree\n"
    assert [each.strip("\n") for each in blocks.feed(text)] == [
        "One",
        "- a\n\n- b",
        "Two",
        "```\nx\n\ny\n```",
    ]
    assert blocks.tail(3) == ["Three", ""]


@pytest.mark.parametrize("piece", ["[", "*", "`", "> ", "- ", "![", "[[](", "|x", "&#27;", "<!--", "1. "])
def test_a_long_block_is_shown_in_time_that_grows_with_it(piece: str) -> None:
    text = piece * 250_000
    assert len(rendered(Safe(markdown(text)))) >= len(text)


def test_html_is_text() -> None:
    assert "<b onclick=x>hi</b>" in rendered(Safe(markdown("<b onclick=x>hi</b>")))
    assert "<div>" in rendered(Safe(markdown("<div>\nhi\n</div>")))


def test_what_only_the_markdown_parser_makes_of_an_entity_is_harmless() -> None:
    shown = rendered(Safe(markdown("&#x202e;gpj &#27;[2J &#x9b;31m &#8206;")))
    assert is_harmless(shown)
    assert r"\u202egpj" in shown


def test_links_are_shown_with_their_address() -> None:
    shown = rendered(Safe(markdown("[here](http://example.test/a)")))
    assert "here (http://example.test/a)" in shown
    assert "\x1b]8" not in shown


def test_an_output_is_folded_in_its_middle() -> None:
    lines = [*folded("\n".join(map(str, range(100))), "; more")]
    assert lines[0] == "0"
    assert lines[-1] == "99"
    assert "88 more lines; more" in lines[4]
    assert "600 more characters" in next(folded("x" * 1000, ""))


def test_text_that_was_missed_is_shown_when_the_item_is_done() -> None:
    delta = {"type": "agent.session.turn.output_text.delta", "item_id": "a_1"}
    whole = {"type": "message", "role": "assistant", "content": [{"text": "one two three"}]}
    added = item_event("added", **whole | {"content": [], "status": "in_progress"})
    shown = transcript_of(added, delta | {"delta": "one "}, item_event("done", **whole))
    assert shown.count("one two three") == 1
    shown = transcript_of(added, delta | {"delta": "two "}, item_event("done", **whole))
    assert shown.count("one two three") == 1
    assert transcript_of(item_event("done", **whole), item_event("done", **whole)).count("three") == 1
