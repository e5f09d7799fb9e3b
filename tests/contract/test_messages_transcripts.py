"""The golden transcripts of `test-results/messages/` are what Anthropic's package reads."""

from __future__ import annotations

import json

import pytest
from anthropic.types import Message

from scripts.golden import DYNAMIC_ID, manifest_of, transcript
from tests.surfaces.messages.answering import fold


@pytest.mark.parametrize("file", [entry["file"] for entry in manifest_of("messages")])
def test_ids_are_replaced_and_the_rest_is_the_sdks_own(file: str) -> None:
    recorded = transcript("messages", file)
    answer = recorded.get("response")
    if answer is None and recorded["stream"][-1]["type"] == "message_stop":
        answer = fold(recorded["stream"])
    if answer is not None and answer["type"] == "message":
        assert answer["id"] == DYNAMIC_ID
        Message.model_validate(answer)
    assert '"msg_' not in json.dumps(recorded)
    assert '"req_' not in json.dumps(recorded)
