from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from openai.types import Completion

from codex_proxy.core.events import Event
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.surfaces.chat.completions import CompletionRenderer, ParsedCompletion, parse
from codex_proxy.surfaces.requests.options import ParseContext, RequestHints, RequestSettings
from tests.surfaces.chat.asking import CATALOG
from tests.surfaces.chat.strategies import TURNS
from tests.surfaces.messages.asking import texts

HEAD: dict[str, Any] = {"id": "cmpl-1", "created": 7, "model": "codex-5"}


def ask(**fields: Any) -> ParsedCompletion:
    body = json.dumps({"model": "codex-5", "prompt": "Hi", **fields}).encode()
    return parse(body, context=ParseContext(RequestSettings(), CATALOG, RequestHints()))


def refusal_of(**fields: Any) -> Failure:
    with pytest.raises(Fault) as raised:
        ask(**fields)
    return raised.value.failure


def test_a_prompt_is_a_turn_of_one_message() -> None:
    found = ask(prompt=["Hi"], max_tokens=5, stop="\n", temperature=0.5, user="x", logprobs=0)
    assert texts(found.turn.history) == ["user: Hi"]
    assert (found.turn.max_tokens, found.turn.stop) == (5, ("\n",))
    assert (found.turn.sampling, found.ignored) == ({"temperature": 0.5}, ("logprobs", "user"))
    assert not found.stream


@pytest.mark.parametrize(
    "wrong",
    [
        {"suffix": "end"},
        {"echo": True},
        {"n": 2},
        {"prompt": ["a", "b"]},
        {"prompt": [1, 2]},
        {"prompt": ""},
        {"prompt": None},
        {"temperature": -1},
        {"presence_penalty": 10**22},
        {"seed": 10**30},
        {"stream_options": {"include_usage": True}},
    ],
)
def test_what_an_agent_cannot_do_is_refused(wrong: dict[str, Any]) -> None:
    assert (refusal_of(**wrong).param or "").startswith(next(iter(wrong)))


@settings(deadline=None)
@given(TURNS)
def test_a_stream_put_together_by_a_client_is_the_whole_answer(events: list[Event]) -> None:
    stream = CompletionRenderer(**HEAD, stream=True, include_usage=True)
    frames = [line[6:] for line in stream.feed(events).split(b"\n\n") if line]
    assert frames.pop() == b"[DONE]"
    parts = [json.loads(frame) for frame in frames]
    whole = CompletionRenderer(**HEAD)
    assert whole.feed(events) == b""
    answer = json.loads(whole.result())
    if answer["choices"][0]["finish_reason"] in (
        "stop",
        "length",
        "content_filter",
    ):  # others are a provider's own
        Completion.model_validate(answer)
    *texts_of, usage = parts
    said = "".join(part["choices"][0]["text"] for part in texts_of)
    assert said == answer["choices"][0]["text"]
    assert texts_of[-1]["choices"][0]["finish_reason"] == answer["choices"][0]["finish_reason"]
    assert usage["usage"] == answer["usage"]
