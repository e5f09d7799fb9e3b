"""Values that Ollama takes are taken, and those that it refuses are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.core.faults import Fault
from codex_proxy.surfaces.ollama.wire import OllamaChatRequest
from codex_proxy.surfaces.requests.body import parse_as


def parsed(**fields: Any) -> OllamaChatRequest:
    given = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return parse_as(OllamaChatRequest, json.dumps(given).encode())[0]


@pytest.mark.parametrize(
    "keep_alive", [0, -1, 5, 1.5, "5m", "0", "-1s", "1h30m", "1.5h", ".5s", "300ms", None]
)
def test_a_time_to_keep_the_model_is_a_number_or_a_duration_of_go(keep_alive: Any) -> None:
    assert parsed(keep_alive=keep_alive).keep_alive == keep_alive


@pytest.mark.parametrize("keep_alive", ["soon", True, False, ["5m"], {}, "", "5", "5 m", "m", "5d", "5m "])
def test_no_other_time_to_keep_the_model_is_taken(keep_alive: Any) -> None:
    with pytest.raises(Fault) as refused:
        parsed(keep_alive=keep_alive)
    assert refused.value.failure.param == "keep_alive"


def test_a_role_has_any_case_and_a_whole_number_may_have_a_fraction() -> None:
    request = parsed(
        messages=[{"role": "User", "content": "Hi"}, {"role": "SYSTEM", "content": "Be brief."}],
        options={"num_predict": 50.0, "seed": 7.0, "top_k": 3.9},
    )
    assert [each.role for each in request.messages or ()] == ["user", "system"]
    assert request.options is not None
    assert (request.options.num_predict, request.options.seed, request.options.top_k) == (50, 7, 3)
