"""The renderer's number is another one when the same events become other frames: a stream that was begun by a release
before is not continued with events that have other numbers.
"""

from __future__ import annotations

import hashlib

import pytest

from codex_proxy.core import events as ev
from codex_proxy.core.events import Event
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Activity, McpApproval, McpCall, McpTools, Message, Reasoning, ToolCall
from codex_proxy.surfaces.responses.kept_log import RENDERER
from codex_proxy.surfaces.responses.profile import OpenResponsesRenderer
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from tests.surfaces.responses.answering import CREATED, ECHO, ID, CountedIds, Stopped

SAID: list[Event] = [
    ev.TurnStarted("thread", "gpt"),
    ev.ItemStarted(McpTools("tools", "files", b'[{"name":"read","input_schema":{}}]')),
    ev.ItemEnded("tools"),
    ev.ItemStarted(Reasoning("thought")),
    ev.ReasoningDelta("thought", "Let me "),
    ev.ReasoningDelta("thought", "see."),
    ev.ReasoningDelta("thought", "Raw.", 0, "raw"),
    ev.RawItem("reasoning", b'{"type":"reasoning","id":"thought","summary":[],"encrypted_content":"sealed"}'),
    ev.ItemEnded("thought"),
    ev.ItemStarted(Activity("command", "command", "ls")),
    ev.OutputDelta("command", "a.py\n"),
    ev.ItemEnded("command"),
    ev.ItemStarted(McpCall("run", "call_1", "files", "read")),
    ev.ArgumentsDelta("run", '{"path":"a.py"}'),
    ev.OutputDelta("run", "print(1)"),
    ev.ItemEnded("run"),
    ev.ItemStarted(Message("said", phase="final_answer")),
    ev.TextDelta("said", "It "),
    ev.TextDelta("said", "prints 1."),
    ev.AnnotationAdded(
        "said", b'{"type":"url_citation","url":"https://a.example","start_index":0,"end_index":2}'
    ),
    ev.ItemEnded("said"),
    ev.ItemStarted(Message("refused")),
    ev.RefusalDelta("refused", "No more."),
    ev.ItemEnded("refused"),
    ev.ItemStarted(ToolCall("call", "call_2", "weather")),
    ev.ArgumentsDelta("call", '{"city":"Paris"}'),
    ev.ItemEnded("call"),
    ev.ItemStarted(ToolCall("patch", "call_3", "patch", "custom")),
    ev.ArgumentsDelta("patch", "*** Begin"),
    ev.ItemEnded("patch"),
    ev.ItemStarted(McpApproval("ask", "call_4", "files", "write")),
    ev.ArgumentsDelta("ask", "{}"),
    ev.ItemEnded("ask"),
    ev.StepCompleted(ev.Usage(10, 4, 7, 2)),
]
FAILURE = Failure(FaultKind.UPSTREAM_ERROR, "It broke.")
ENDS = (
    ev.TurnEnded("stop"),
    ev.TurnEnded("length"),
    ev.TurnEnded("interrupted"),
    ev.TurnEnded.with_failure(FAILURE),
)
CUT = (len(SAID), 18, 5, 1)
"""How many events came before the end."""

DIGESTS = {1: "ab2b9954bf2df54ad1fba28ec944c401a80e47d02c69143d96ac13f6b68afd03"}
"""The digest of all these streams, by the renderer's number."""


def digest() -> str:
    found = hashlib.sha256()
    for kind in (ResponsesRenderer, OpenResponsesRenderer):
        for activity in ("summaries", "items", "off"):
            for encrypted in (False, True):
                for cut in CUT:
                    for end in ENDS:
                        answer = kind(
                            id=ID,
                            created_at=CREATED,
                            echo=ECHO,
                            ids=CountedIds(),
                            clock=Stopped(),
                            stream=True,
                            background=True,
                            activity=activity,
                            encrypted_reasoning=encrypted,
                        )
                        found.update(answer.feed([*SAID[:cut], end]))
    return found.hexdigest()


def test_the_renderer_has_another_number_when_its_frames_are_others() -> None:
    assert digest() == DIGESTS.get(RENDERER), (
        "The same events became other frames. Add 1 to RENDERER (surfaces/responses/kept_log.py), and put the digest "
        "into DIGESTS in place of the one before."
    )


def test_a_change_of_one_frame_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    took = ResponsesRenderer._take_frames
    monkeypatch.setattr(ResponsesRenderer, "_take_frames", lambda self: [*took(self), b": x\n\n"])
    assert digest() != DIGESTS[RENDERER]
