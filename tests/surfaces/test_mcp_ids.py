"""The call id in the id of an MCP item."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.surfaces.responses.mcp import call_id_of, new_item_id


class Random:
    def new(self, prefix: str) -> str:
        return prefix + uuid.uuid4().hex


@given(st.sampled_from(["mcp_", "mcpr_"]), st.text(min_size=1, max_size=64))
def test_a_call_id_that_goes_into_an_id_comes_out_of_it(prefix: str, call_id: str) -> None:
    id = new_item_id(prefix, call_id, Random())
    assert id.startswith(prefix)
    assert call_id_of(id) == call_id
    assert id != new_item_id(prefix, call_id, Random())


def test_an_id_that_a_client_made_up_is_a_call_id_itself() -> None:
    for id in ("mcp_call_001", "mcp_123e4567-e89b-12d3-a456-426614174000", "x", "msg_0123456789ab-call"):
        assert call_id_of(id) == id
    assert call_id_of("mcp_" + "a" * 100) == "mcp_" + "a" * 60
