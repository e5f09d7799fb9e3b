"""What messages tell the model: everything in its place, and nothing that they say refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codex_proxy.core.items import (
    HistoryCall,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    RawHistoryItem,
    TextPart,
)
from codex_proxy.core.media import PdfTexts
from codex_proxy.core.turn import Turn
from codex_proxy.runs.idle_sessions import item_digests
from codex_proxy.surfaces.messages.history import NO_RESULT, RESULT_WITHOUT_CALL
from codex_proxy.surfaces.messages.state import pack_items
from tests.pictures import png_of
from tests.surfaces.messages.asking import (
    HELLO,
    ask,
    history,
    identity,
    message_of,
    refusal_of,
    result,
    texts,
    use,
)

PNG = base64.b64encode(png_of(8, 8)).decode()
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.330.66f; cc_entrypoint=cli;"}
PDF = base64.b64encode(b"%PDF-1.1 pages").decode()
ENCRYPTED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
SECOND = {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gBBB"}
MESSAGE = {"type": "message", "role": "assistant", "content": []}


def tool_use(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "get_weather", "arguments": "{}"}


def state(*items: dict[str, Any], model: str = "gpt-5.5") -> dict[str, Any]:
    data = pack_items([json.dumps(item).encode() for item in items], f"codex-app-server/{model}")
    return {"type": "redacted_thinking", "data": data}


# --- instructions ---------------------------------------------------------------------------------


def test_the_billing_block_is_dropped_and_the_rest_is_one_instruction() -> None:
    system = [BILLING, {"type": "text", "text": "You are it."}, {"type": "text", "text": "Be brief."}]
    assert texts(ask(system=system).turn.history)[0] == "developer: You are it.\n\nBe brief."
    assert texts(ask(system=BILLING["text"]).turn.history) == ["user: hello"]


@pytest.mark.parametrize("system", ["You are it.", [{"type": "text", "text": "You are it."}]])
def test_instructions_may_be_a_text_or_blocks(system: Any) -> None:
    assert texts(ask(system=system).turn.history) == ["developer: You are it.", "user: hello"]


def test_instructions_in_the_middle_stay_there() -> None:
    told = history(
        message_of("user", "Hi."),
        message_of("system", "Be brief."),
        message_of("assistant", "Yes."),
        message_of("user", "So?"),
    )
    assert texts(told) == ["user: Hi.", "developer: Be brief.", "assistant: Yes.", "user: So?"]


# --- calls and results ----------------------------------------------------------------------------


def test_results_stand_right_behind_their_calls_in_the_calls_order() -> None:
    told = history(
        message_of("user", "Hi."),
        message_of("assistant", "I look.", use("a"), use("b", x=1)),
        message_of("user", "wait!", result("b", "two"), result("a", "one")),
        message_of("system", "Be brief."),
    )
    assert texts(told) == [
        "user: Hi.",
        "assistant: I look.",
        "HistoryCall",
        "HistoryCall",
        "a: one",
        "b: two",
        "user: wait!",
        "developer: Be brief.",
    ]


def test_results_may_come_in_several_messages_with_words_between() -> None:
    told = history(
        message_of("assistant", use("a")),
        message_of("assistant", use("b")),
        message_of("user", result("a", "one")),
        message_of("system", "Tool loaded."),
        message_of("user", result("b", "two")),
        message_of("assistant", "Both."),
    )
    assert texts(told)[2:] == ["a: one", "b: two", "developer: Tool loaded.", "assistant: Both."]


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    told = history(
        message_of("assistant", use("a"), use("b")), message_of("user", result("b", "two"), "go on")
    )
    assert texts(told)[2:] == [f"a: {NO_RESULT}", "b: two", "user: go on"]


def test_a_result_that_nobody_asked_for_is_what_the_user_says() -> None:
    told = history(message_of("user", result("x", "sunny"), "and now?"))
    assert texts(told) == [f"user: {RESULT_WITHOUT_CALL}|sunny|and now?"]
    twice = history(
        message_of("assistant", use("a")), message_of("user", result("a", "one"), result("a", "two"))
    )
    assert texts(twice)[1:] == ["a: one", f"user: {RESULT_WITHOUT_CALL}|two"]


def test_an_id_may_come_again_in_a_later_answer() -> None:
    told = history(
        message_of("assistant", use("a")), message_of("user", result("a", "1")),
        message_of("assistant", use("a")), message_of("user", result("a", "2")),
    )  # fmt: skip
    assert texts(told) == ["HistoryCall", "a: 1", "HistoryCall", "a: 2"]


def test_two_calls_with_one_id_get_their_results_in_order() -> None:
    told = history(
        message_of("assistant", use("a", q=1), use("a_2"), use("a", q=2)),
        message_of("user", result("a", "1"), result("a", "2"), result("a_2", "other")),
    )
    calls = [item.call_id for item in told if isinstance(item, HistoryCall)]
    assert (len(set(calls)), texts(told)[3:]) == (3, ["a: 1", "a_2: other", f"{calls[2]}: 2"])


def test_arguments_keep_the_order_of_their_members() -> None:
    (call,) = history(message_of("assistant", use("a", zebra=1, apple={"y": [1.5, None]})))[:1]
    assert call == HistoryCall("a", "get_weather", '{"zebra":1,"apple":{"y":[1.5,null]}}')


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("no such file", "Error: no such file"),
        ("Error: no such file", "Error: no such file"),
        ("<tool_use_error>none</tool_use_error>", "<tool_use_error>none</tool_use_error>"),
        ([], "Error: "),
        (None, "Error: "),
    ],
)
def test_a_result_that_is_an_error_says_so(content: Any, shown: str) -> None:
    told = history(message_of("assistant", use("a")), message_of("user", result("a", content, is_error=True)))
    assert texts(told)[1] == f"a: {shown}"


def test_images_in_results_reach_the_model() -> None:
    told = history(
        message_of("assistant", use("a")),
        message_of("user", result("a", [PICTURE, {"type": "text", "text": "x"}])),
    )
    assert isinstance(told[1], HistoryOutput)
    assert told[1].parts == (ImagePart(f"data:image/png;base64,{PNG}"), TextPart("x"))


def test_the_same_result_as_a_text_or_as_a_block_is_the_same() -> None:
    one = history(message_of("assistant", use("a")), message_of("user", result("a", "x")))
    other = history(
        message_of("assistant", use("a")), message_of("user", result("a", [{"type": "text", "text": "x"}]))
    )
    assert one == other
    assert history(message_of("assistant", use("a")), message_of("user", result("a", "")))[1:] == (
        HistoryOutput("a", (TextPart(""),)),
    )


# --- the model's state ----------------------------------------------------------------------------


def test_state_goes_back_to_its_place_among_texts_and_calls() -> None:
    told = history(
        message_of("user", "Hi."),
        message_of(
            "assistant",
            {"type": "thinking", "thinking": "Hm.", "signature": "cxp1"},
            "I look.",
            state(ENCRYPTED, MESSAGE, SECOND, tool_use("a")),
            use("a"),
        ),
        message_of("user", result("a")),
    )
    assert texts(told) == [
        "user: Hi.",
        "RawHistoryItem",
        "assistant: I look.",
        "RawHistoryItem",
        "HistoryCall",
        "a: sunny",
    ]
    assert [json.loads(item.json) for item in told if isinstance(item, RawHistoryItem)] == [ENCRYPTED, SECOND]


def test_a_text_that_the_client_added_stands_before_the_calls() -> None:
    told = history(message_of("assistant", "One.", "Two.", state(ENCRYPTED, tool_use("a")), use("a")))
    assert texts(told)[:4] == ["RawHistoryItem", "assistant: One.", "assistant: Two.", "HistoryCall"]


def test_what_the_client_has_cut_away_is_not_missed() -> None:
    told = history(message_of("assistant", state(ENCRYPTED, MESSAGE, tool_use("a"), tool_use("b")), use("b")))
    assert texts(told)[:2] == ["RawHistoryItem", "HistoryCall"]


def test_the_same_state_twice_is_reported_once() -> None:
    told = history(
        message_of("assistant", "x", state(ENCRYPTED)),
        message_of("user", "?"),
        message_of("assistant", state(ENCRYPTED), "x"),
    )
    assert texts(told).count("RawHistoryItem") == 1


@pytest.mark.parametrize(
    "block",
    [
        state(ENCRYPTED, model="gpt-5.4-mini"),
        {"type": "redacted_thinking", "data": "EqQBCgIYAhIM"},
        {"type": "redacted_thinking", "data": "ü"},
        {"type": "redacted_thinking"},
        {"type": "thinking", "thinking": "Hm.", "signature": "EqQBCgIYAhIM" * 5000},
    ],
    ids=["another model", "Anthropic's", "damaged", "none", "signed by Anthropic"],
)
def test_state_of_others_is_dropped_without_a_word(block: dict[str, Any]) -> None:
    answer = ask(messages=[message_of("assistant", block, "So."), message_of("user", "Go on.")])
    assert texts(answer.turn.history) == ["assistant: So.", "user: Go on."]
    assert answer.ignored == ()


# --- documents, searches, what is new ---------------------------------------------------------------


def document(source: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **more}


def test_a_text_document_is_its_text_with_title_and_context() -> None:
    block = document(
        {"type": "text", "media_type": "text/plain", "data": "All."}, title='A "b"', context="Of me."
    )
    assert texts(history(message_of("user", block))) == [
        "user: <document title=\"A 'b'\">\nOf me.\nAll.\n</document>"
    ]
    answer = ask(messages=[message_of("user", {**block, "citations": {"enabled": True}})])
    assert answer.ignored == ("citations",)


def test_a_document_of_blocks_keeps_its_images() -> None:
    block = document({"type": "content", "content": [{"type": "text", "text": "All."}, PICTURE]})
    (message,) = history(message_of("user", block))
    assert isinstance(message, HistoryMessage)
    assert [type(part) for part in message.parts] == [TextPart, TextPart, ImagePart, TextPart]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_document_that_is_a_text_of_any_encoding_is_its_text(encoding: str) -> None:
    data = base64.b64encode("Ällö.".encode(encoding)).decode()
    (told,) = texts(
        history(message_of("user", document({"type": "base64", "media_type": "text/csv", "data": data})))
    )
    assert "Ällö." in told


def test_a_pdf_that_nobody_reads_is_a_note_to_the_model() -> None:
    block = document({"type": "base64", "media_type": "application/pdf", "data": PDF}, title="plan.pdf")
    answer = ask(messages=[message_of("user", block)])
    assert texts(answer.turn.history) == [
        "user: [Document plan.pdf, application/pdf, 14 bytes: this model cannot read it.]"
    ]
    assert answer.ignored == ("document",)


def test_a_pdf_that_is_read_here_is_its_text() -> None:
    block = document({"type": "base64", "media_type": "application/pdf", "data": PDF})
    pdfs = PdfTexts()
    ask(messages=[message_of("user", block)], how={"pdfs": pdfs})
    (digest,) = pdfs.unread
    answer = ask(messages=[message_of("user", block)], how={"pdfs": PdfTexts({digest: "Pages."})})
    assert "Pages." in texts(answer.turn.history)[0]
    assert answer.ignored == ()


NOT_SENT_ALONG = [
    ({"type": "file", "file_id": "file_011"}, "source.file_id"),
    ({"type": "url", "url": "https://example.invalid/a.pdf"}, "source"),
    ({"type": ["file"], "data": PDF}, "source"),
    ({"data": PDF}, "source"),
    ({}, "source"),
    (None, "source"),
    ({"type": "base64", "media_type": "application/pdf", "data": "?"}, "source.data"),
    ({"type": "base64", "media_type": "application/pdf", "data": ""}, "source.data"),
    ({"type": "base64", "media_type": "application/pdf"}, "source.data"),
    ({"type": "base64", "media_type": "application/pdf", "data": None}, "source.data"),
    ({"type": "base64", "media_type": "application/pdf", "data": 1}, "source.data"),
    ({"type": "base64", "media_type": "application/pdf", "data": ["A"]}, "source.data"),
    ({"type": "base64", "media_type": "application/pdf", "data": {}}, "source.data"),
    ({"type": "text", "media_type": "text/plain", "data": None}, "source.data"),
    ({"type": "content", "content": None}, "source.content"),
]


@pytest.mark.parametrize("in_result", [False, True], ids=["in a message", "in a result"])
@pytest.mark.parametrize(("source", "field"), NOT_SENT_ALONG, ids=str)
def test_a_document_that_is_not_sent_along_is_refused_in_the_newest_message_and_a_note_in_earlier_ones(
    source: Any, field: str, in_result: bool
) -> None:
    block, place = document(source, title="plan.pdf"), "content[0]"
    before: list[dict[str, Any]] = []
    if in_result:
        before = [HELLO, message_of("assistant", use("toolu_1"))]
        block, place = result("toolu_1", [block]), "content[0].content[0]"
    asked = [*before, message_of("user", block)]
    fault = refusal_of(messages=asked)
    assert fault.param == f"messages[{len(before)}].{place}.{field}"
    assert "document" in fault.message
    answer = ask(messages=[*asked, message_of("assistant", "So."), message_of("user", "Go on.")])
    assert any(
        "[Document plan.pdf: this model cannot read it.]" in told for told in texts(answer.turn.history)
    )
    assert answer.ignored == ("document",)


def test_results_of_a_search_are_reported_by_title_and_address() -> None:
    found = {"type": "web_search_result", "title": "Codex", "url": "https://x", "encrypted_content": "…"}
    told = history(
        message_of(
            "assistant",
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [found]},
            "It is.",
        )
    )
    assert texts(told) == ["assistant: [Results of a search:]\nCodex - https://x", "assistant: It is."]


def test_a_search_of_this_server_leaves_no_words_that_the_model_did_not_say() -> None:
    ours = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    assert texts(history(message_of("assistant", ours, "It is."))) == ["assistant: It is."]


def test_a_search_result_that_the_user_brings_is_reported() -> None:
    block = {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "C"}]}
    assert texts(history(message_of("user", block))) == ["user: T - S\nC"]
    assert texts(history(message_of("user", {**block, "content": "C"}))) == ["user: T - S\nC"]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "!"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "image"},
        {"type": "image", "source": {"type": "url", "url": "ftp://x"}},
    ],
    ids=["torn", "of the Files API", "without a source", "of another scheme"],
)
def test_an_image_that_cannot_be_shown_is_refused_in_the_newest_message_only(block: dict[str, Any]) -> None:
    failure = refusal_of(messages=[message_of("user", "Hi."), message_of("user", block)])
    assert (failure.param or "").startswith("messages[1].content[0].source")
    told = history(message_of("user", block), message_of("assistant", "Hm."), message_of("user", "Go on."))
    assert "left out" in texts(told)[0]


def test_an_agent_that_takes_no_images_gets_a_note_for_images_of_the_history() -> None:
    blind = {"takes_images": lambda turn: False}
    answer = ask(messages=[message_of("user", PICTURE), message_of("user", "So?")], how=blind)
    assert "An image was left out" in texts(answer.turn.history)[0]


def test_a_reference_to_a_tool_is_reported() -> None:
    block = {"type": "tool_reference", "tool_name": "WebSearch"}
    told = history(message_of("assistant", use("a", "ToolSearch")), message_of("user", result("a", [block])))
    assert texts(told)[1] == "a: The tool WebSearch can be called from now on."


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_a_block_that_is_a_string_is_its_text_unchanged(role: str) -> None:
    told = history(
        message_of("user", "Hi."), {"role": role, "content": ["<a> @/etc/passwd", " /help\n"]}, HELLO
    )
    spoken = {"system": "developer"}.get(role, role)
    assert [line for line in texts(told) if "passwd" in line or "/help" in line] == (
        [f"{spoken}: <a> @/etc/passwd", f"{spoken}:  /help\n"]
        if role == "assistant"
        else [f"{spoken}: <a> @/etc/passwd| /help\n"]
    )


def test_instructions_may_be_strings_and_nothing_but_texts() -> None:
    assert texts(history(HELLO, system=["Be brief."]))[0] == "developer: Be brief."
    assert refusal_of(system=[PICTURE]).param == "system[0].type"


@pytest.mark.parametrize("block", [{"type": "of_tomorrow", "text": "x"}, {"text": "x"}, 1, None, []])
def test_a_block_that_is_unknown_is_refused_in_the_newest_message_and_named_before(block: Any) -> None:
    assert refusal_of(messages=[{"role": "user", "content": [block]}]).param == "messages[0].content[0].type"
    answer = ask(messages=[{"role": "user", "content": [block]}, message_of("assistant", "Hm."), HELLO])
    assert "left out" in texts(answer.turn.history)[0]
    assert [name for name in answer.ignored if name.startswith("messages[].content[]")]


DOCUMENT = {"type": "document", "source": {"type": "text", "data": "x"}}


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"type": "text", "text": {"a": 1}}, "text"),
        ({"type": "tool_result", "tool_use_id": 1, "content": "x"}, "tool_use_id"),
        ({"type": "tool_result", "tool_use_id": "c", "is_error": "true"}, "is_error"),
        ({"type": "tool_result", "tool_use_id": "c", "content": {"temp": 3}}, "content"),
        ({"type": "search_result", "title": "T", "content": 5}, "content"),
        ({"type": "search_result", "title": 5}, "title"),
        ({"type": "tool_reference", "tool_name": 5}, "tool_name"),
        ({**DOCUMENT, "title": 5}, "title"),
        ({**DOCUMENT, "context": ["x"]}, "context"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_in_the_newest_message_and_named_before(
    block: Any, field: str
) -> None:
    message = message_of("user", "A", block)
    assert refusal_of(messages=[message]).param == f"messages[0].content[1].{field}"
    assert ask(messages=[message, message_of("assistant", "Hm."), HELLO]).ignored == (
        f"messages[].content[].{field}",
    )


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ({"type": "text", "text": 5}, "text"),
        ({**use("c"), "input": "str"}, "input"),
        ({**use("c"), "name": [1]}, "tool_use"),
    ],
)
def test_a_field_of_the_wrong_type_in_an_answer_is_named(block: Any, named: str) -> None:
    answer = ask(messages=[HELLO, message_of("assistant", block), HELLO])
    assert answer.ignored == (f"messages[].content[].{named}",)


@pytest.mark.parametrize("tool", [None, 5, {"type": "tool_definition", "definition": 5}])
def test_a_change_of_tools_that_names_none_changes_nothing(tool: Any) -> None:
    added = {
        "role": "system",
        "content": [{"type": "tool_addition", "tool": tool}, {"type": "tool_addition"}],
    }
    assert ask(messages=[HELLO, added]).turn.tools == ()


def test_a_block_of_an_answer_that_is_unknown_is_named() -> None:
    answer = ask(messages=[HELLO, message_of("assistant", {"type": "mcp_tool_use", "id": "m"}, "So."), HELLO])
    assert answer.ignored == ("messages[].content[].mcp_tool_use",)
    assert texts(answer.turn.history)[1] == "assistant: So."


def test_a_compaction_is_its_summary() -> None:
    told = history(message_of("assistant", {"type": "compaction", "content": "They met."}), HELLO)
    assert texts(told)[0].endswith("They met.")


def test_an_instruction_that_is_cleared_is_not_shown_after_the_next_message_of_the_user() -> None:
    passing = {"role": "system", "content": "Only now.", "clear_at": "next_user_message"}
    assert "Only now." in str(texts(history(HELLO, passing)))
    assert "Only now." not in str(texts(history(HELLO, passing, message_of("assistant", "Hm."), HELLO)))
    assert "Only now." in str(texts(history(HELLO, {**passing, "clear_at": "never"}, HELLO)))


def change(kind: str, **tool: Any) -> dict[str, Any]:
    """A message that adds or removes a tool."""
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


def test_tools_come_and_go_within_a_conversation() -> None:
    search = {"name": "search", "input_schema": {"type": "object"}, "defer_loading": True}
    added = change("tool_addition", type="tool_reference", name="search")
    removed = change("tool_removal", type="tool_reference", name="search")
    defined = change("tool_addition", type="tool_definition", definition={**search, "defer_loading": False})

    def offered(*messages: dict[str, Any], tools: Any = (search,)) -> list[str]:
        return [tool.name for tool in ask(messages=[HELLO, *messages], tools=list(tools)).turn.tools]

    assert offered() == []
    assert offered(added) == ["search"]
    assert offered(added, removed) == []
    assert offered(added, removed, added) == ["search"]
    assert offered(defined, tools=()) == ["search"]
    assert offered(defined, removed, tools=()) == []
    assert "search can no longer be called" in str(texts(history(HELLO, added, removed, tools=[search])))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["text", "a", "image"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "id", "name", "input", "source", "data", "content", "title", "url"]
            ),
            inner,
        )
    ),
    max_leaves=8,
)
KINDS = (
    "text image document search_result tool_use tool_result thinking redacted_thinking tool_reference "
    "server_tool_use web_search_tool_result web_fetch_tool_result container_upload of_tomorrow"
)
FIELDS = "text id name input source data content title url tool_use_id is_error signature tool_name context citations"
BLOCKS = st.builds(
    lambda kind, more: {**more, "type": kind},
    st.sampled_from(KINDS.split()),
    st.dictionaries(st.sampled_from(FIELDS.split()), VALUES, max_size=5),
)
MESSAGES = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant", "system", "of_tomorrow"]),
    st.none() | st.text(max_size=5) | st.lists(BLOCKS | VALUES, max_size=5),
)


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=6))
def test_nothing_in_the_history_is_ever_refused(messages: list[dict[str, Any]]) -> None:
    told = history(*messages, message_of("user", "So?"))
    waiting: list[str] = []
    for item in told:
        if isinstance(item, HistoryCall):
            waiting.append(item.call_id)
        elif isinstance(item, HistoryOutput):
            assert item.call_id == waiting.pop(0), "outputs stand behind their calls, in order"
        elif isinstance(item, HistoryMessage):
            assert not waiting or item.role == "assistant"
            assert item.parts
    assert waiting == []
    assert item_digests(told)[0]


def test_identity_is_of_agent_and_model() -> None:
    """The parser is told by whom a turn will be read."""
    asked: list[str] = []

    def named(turn: Turn) -> str:
        asked.append(identity(turn))
        return ""

    ask(model="gpt-5.5-high", how={"identity": named})
    assert asked == ["codex-app-server/gpt-5.5"]
