"""The server does what its own document says: no fault of its own for any request, and every answer as described.

schemathesis makes requests out of the document, right ones and wrong ones, and holds the answers to it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from codex_proxy.http.endpoints import ENDPOINTS
from codex_proxy.http.openapi import document

OF_THE_MODEL: Final = frozenset({"invalid_structured_output", "tool_choice_not_honoured"})
"""The fake agent answers the same whatever is asked: it follows no schema, and calls no tool that it has to."""


def no_fault_of_this_server(_: Any, response: Any, __: Any) -> None:
    """A 5xx is never the answer to a request, however bad, unless the model's answer is to blame."""
    if response.status_code >= 500:
        assert response.json()["error"]["code"] in OF_THE_MODEL


CHECKS: Final = [
    no_fault_of_this_server,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    negative_data_rejection,
]

SERVED: Final = [each for each in ENDPOINTS if each.needs is None and each.name != "open_responses_socket"]
"""What a server has by default; the WebSocket is no question with one answer."""
LABELS: Final = list(dict.fromkeys(f"{each.method} {each.path}" for each in SERVED))
"""The operations: two vendors that have the same path share one."""
MODES: Final = st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE])

FEW: Final = settings(
    max_examples=settings().max_examples // 4,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@cache
def operations() -> dict[str, Any]:
    """The operations of the document by their labels."""
    found = schemathesis.openapi.from_dict(document(SERVED, max_choices=5)).get_all_operations()
    return {each.ok().label: each.ok() for each in found if isinstance(each, Ok)}


def test_the_answer_is_an_openapi_document() -> None:
    schemathesis.openapi.from_dict(document(ENDPOINTS, max_choices=5)).validate()


def test_every_operation_is_asked() -> None:
    assert sorted(operations()) == sorted(LABELS)


@pytest.mark.sampled(every=11)
@pytest.mark.parametrize("label", LABELS)
@FEW
@given(data=st.data())
def test_an_operation_keeps_to_the_document(label: str, port: int, data: st.DataObject) -> None:
    operation = operations()[label]
    case = data.draw(operation.as_strategy(generation_mode=data.draw(MODES)))
    # Paths stand without a prefix in the document, and are served without one too.
    response = case.call(base_url=f"http://127.0.0.1:{port}")
    case.validate_response(response, checks=CHECKS)
