"""What a client says while Codex works on its turn: given to Codex one by one, and taken when Codex says so."""

from __future__ import annotations

from typing import Any

import pytest

from codex_proxy.core import events as ev
from codex_proxy.core.events import Event, TurnEnded
from codex_proxy.core.items import HistoryMessage, ImagePart, Part, TextPart
from tests.agents.app_server_dialogue import THREAD, TURN, Dialogue, output

NO_TURN = "no active turn to steer"


def said(*parts: str | Part) -> tuple[HistoryMessage, ...]:
    """Messages of the user, one for each part."""
    return tuple(
        HistoryMessage("user", (TextPart(part) if isinstance(part, str) else part,)) for part in parts
    )


class Steered(Dialogue):
    def steer(self, id: str, *parts: str | Part) -> None:
        self.take(self.turn.steer(id, said(*parts)))

    @property
    def steers(self) -> list[tuple[str, list[Any]]]:
        """The ids and the input of what Codex was given."""
        given = [message["params"] for message in self.sent if message.get("method") == "turn/steer"]
        assert all((each["threadId"], each["expectedTurnId"]) == (THREAD, TURN) for each in given)
        return [(each["clientUserMessageId"], each["input"]) for each in given]

    def accepts(self) -> None:
        self.agent_answers("turn/steer", {"turnId": TURN})

    def takes(self, id: str | None) -> list[Event]:
        item: dict[str, Any] = {"type": "userMessage", "id": f"item of {id}", "clientId": id, "content": []}
        return [
            *self.agent_notifies("item/started", item=item),
            *self.agent_notifies("item/completed", item=item),
        ]

    @property
    def taken(self) -> list[str]:
        return [event.id for event in self.events if isinstance(event, ev.InputTaken)]


def running(**more: Any) -> Steered:
    dialogue = Steered(**more)
    dialogue.start()
    return dialogue


def text(*parts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": part, "text_elements": []} for part in parts]


def test_an_input_is_a_part_of_the_turn_when_codex_tells_its_message() -> None:
    dialogue = running()
    dialogue.steer("1", "Shorter.", "Please.")
    assert dialogue.steers == [("1", text("Shorter.", "Please."))]
    dialogue.accepts()
    assert dialogue.taken == []
    assert dialogue.takes("1") == [ev.InputTaken("1")]


def test_the_text_that_codex_cuts_for_an_input_is_not_continued() -> None:
    dialogue = running()
    dialogue.agent_notifies("item/agentMessage/delta", itemId="msg_1", delta="Hal")
    dialogue.steer("1", "Shorter.")
    dialogue.accepts()
    dialogue.takes("1")
    dialogue.agent_notifies("item/agentMessage/delta", itemId="msg_2", delta="Yes.")
    deltas = [(event.id, event.text) for event in dialogue.events if isinstance(event, ev.TextDelta)]
    assert deltas == [("msg_1", "Hal"), ("msg_2", "Yes.")]


def test_what_the_model_put_out_before_an_input_comes_before_it() -> None:
    dialogue = running()
    item = {"type": "message", "id": "m", "role": "assistant", "content": []}
    dialogue.agent_notifies("rawResponseItem/completed", item=item)
    dialogue.steer("1", "Shorter.")
    dialogue.accepts()
    dialogue.takes("1")
    kinds = [type(event) for event in dialogue.events]
    assert kinds.index(ev.RawItem) < kinds.index(ev.InputTaken)


def test_inputs_are_given_one_after_the_other() -> None:
    dialogue = running()
    dialogue.steer("1", "One.")
    dialogue.steer("2", "Two.")
    assert [id for id, _ in dialogue.steers] == ["1"]
    dialogue.accepts()
    assert [id for id, _ in dialogue.steers] == ["1", "2"]
    dialogue.accepts()
    dialogue.takes("1")
    dialogue.takes("2")
    assert dialogue.taken == ["1", "2"]


def test_an_input_before_codex_has_begun_the_turn_is_given_then() -> None:
    dialogue = Steered()
    dialogue.steer("1", "Shorter.")
    assert dialogue.steers == []
    dialogue.start()
    assert [id for id, _ in dialogue.steers] == ["1"]


def test_the_turns_own_message_is_not_taken_for_an_input() -> None:
    dialogue = running(mode="agent")
    dialogue.steer("1", "Shorter.")
    dialogue.accepts()
    dialogue.takes(None)
    assert dialogue.taken == []


def test_no_later_input_is_given_when_codex_has_refused_one() -> None:
    dialogue = running()
    dialogue.steer("1", "One.")
    dialogue.steer("2", "Two.")
    dialogue.agent_refuses("turn/steer", NO_TURN)
    dialogue.steer("3", "Three.")
    assert [id for id, _ in dialogue.steers] == ["1"]
    dialogue.ends()
    assert dialogue.taken == []
    assert [event.failure for event in dialogue.events if isinstance(event, TurnEnded)] == [None]


def test_an_input_that_is_too_long_for_codex_waits_with_all_later_ones() -> None:
    dialogue = running()
    dialogue.steer("1", "x" * 1_000_001)
    dialogue.steer("2", "Two.")
    assert dialogue.steers == []


def test_an_image_is_a_part_of_an_input() -> None:
    dialogue = running()
    dialogue.steer("1", "Look:", ImagePart("data:image/png;base64,AA=="))
    assert dialogue.steers[0][1][1] == {"type": "image", "url": "data:image/png;base64,AA=="}


def test_a_thread_with_an_input_that_was_not_taken_is_not_resumed() -> None:
    dialogue = running(keeps_thread=True)
    dialogue.steer("1", "Shorter.")
    dialogue.accepts()
    dialogue.ends()
    assert not dialogue.turn.can_resume


def test_a_thread_that_has_taken_its_inputs_is_resumed() -> None:
    dialogue = running(keeps_thread=True)
    dialogue.steer("1", "Shorter.")
    dialogue.accepts()
    dialogue.takes("1")
    dialogue.ends()
    assert dialogue.turn.can_resume


@pytest.mark.parametrize("accepted", [True, False])
def test_an_input_behind_a_call_is_taken_when_the_call_has_its_output(accepted: bool) -> None:
    dialogue = running(keeps_thread=True)
    dialogue.calls(1)
    dialogue.completes()
    dialogue.wants_output(1)
    dialogue.steer("1", "Shorter.")
    if accepted:
        dialogue.accepts()
    assert dialogue.turn.can_resume
    dialogue.client_resumes(output(1))
    dialogue.takes("1")
    assert dialogue.taken == ["1"]


def test_nothing_is_given_behind_the_turns_end() -> None:
    dialogue = running(keeps_thread=True)
    dialogue.ends()
    dialogue.steer("1", "Shorter.")
    assert dialogue.steers == []
