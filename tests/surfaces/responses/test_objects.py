"""What is said about stored responses, in the words of docs/contract.md#stored-responses and the shapes of the SDK."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import CompactedResponse, InputTokenCountResponse, Response

from codex_proxy.core.events import Usage
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.shown_text import excerpt
from codex_proxy.surfaces.errors import error_body, status_of
from codex_proxy.surfaces.responses import response_object
from tests.surfaces.chat.turns import text_item, turn
from tests.surfaces.responses.answering import renderer, whole
from tests.surfaces.responses.asking import ask, history

DONE = whole(turn(text_item("x")))


def running() -> dict[str, Any]:
    answer = renderer(echo=ask(background=True).echo, background=True)
    answer.open()
    return answer.snapshot()


def test_a_deleted_response_says_so() -> None:
    assert response_object.deleted_response("resp_1") == {
        "id": "resp_1",
        "object": "response.deleted",
        "deleted": True,
    }


def test_a_synchronous_response_cannot_be_cancelled_in_the_contracts_words() -> None:
    with pytest.raises(Fault) as raised:
        response_object.cancel_action(DONE)
    error = json.loads(error_body(raised.value.failure, "responses"))["error"]
    assert (status_of(raised.value.failure, "responses"), error["code"]) == (
        400,
        "cancellation_not_supported",
    )
    assert error["message"] == (
        "This response was not created with 'background': true. Synchronous and streaming responses cannot be "
        "cancelled: closing the connection ends them."
    )


def test_cancelling_is_idempotent() -> None:
    response = running()
    assert response_object.cancel_action(response) == "cancel"
    stopped = response_object.cancelled_response(response)
    assert (stopped["status"], response_object.cancel_action(stopped)) == ("cancelled", "keep")
    Response.model_validate(stopped, strict=True)


def test_a_response_that_nobody_ends_any_more_failed_for_a_reason() -> None:
    lost = response_object.failed_response(
        running(), Failure(kind=FaultKind.UNAVAILABLE, message="The server was restarted.")
    )
    Response.model_validate(lost, strict=True)
    assert lost["status"] == "failed"
    assert response_object.cancel_action(lost) == "keep"


def test_the_output_of_a_compaction_begins_a_new_chain() -> None:
    compacted = response_object.compaction_object(
        id="resp_1", created_at=1, item_id="cmp_1", summary="Owls.", usage=Usage(5, 0, 2, 0)
    )
    CompactedResponse.model_validate(compacted, strict=True)
    assert len(history(*compacted["output"])) == 1


def test_a_count_of_tokens_is_an_estimate_and_says_so() -> None:
    counted = response_object.token_count(100)
    InputTokenCountResponse.model_validate(counted, strict=True)
    assert counted == {"object": "response.input_tokens", "input_tokens": 100, "estimated": True}


LONG_ID = "resp_" + "1" * 200


@pytest.mark.parametrize(
    ("fault", "status", "type", "param", "code"),
    [
        (response_object.not_found(LONG_ID), 404, "not_found_error", None, "not_found"),
        (
            response_object.previous_not_found(LONG_ID),
            400,
            "invalid_request_error",
            "previous_response_id",
            "previous_response_not_found",
        ),
        (
            response_object.not_resumable(LONG_ID),
            400,
            "invalid_request_error",
            "stream",
            "stream_not_resumable",
        ),
    ],
)
def test_a_missing_object_is_named_by_the_beginning_of_its_id(
    fault: Fault, status: int, type: str, param: str | None, code: str
) -> None:
    assert status_of(fault.failure, "responses") == status
    error = json.loads(error_body(fault.failure, "responses"))["error"]
    assert (error["type"], error["param"], error["code"]) == (type, param, code)
    assert f"'{excerpt(LONG_ID)}'" in error["message"]
