"""The fake agent's catalog of models stands for that of the real one: whatever is patched in it is there."""

from __future__ import annotations

import json

import pytest

from codex_proxy.agents.codex.plain_home import PLAIN_PATCH
from fake_proto.models import catalog_text
from tests.real.codex_home import bundled_catalog

FAKE, REAL = (json.loads(text)["models"] for text in (catalog_text(), bundled_catalog()))


@pytest.mark.parametrize("field", PLAIN_PATCH)
def test_fields_that_are_patched_for_the_plain_model_are_in_both_catalogs_with_the_same_type(
    field: str,
) -> None:
    kinds = {type(entry[field]) for entry in REAL if field in entry}
    for entry in FAKE:
        assert type(entry[field]) in kinds
        assert entry[field] != PLAIN_PATCH[field], "nothing to patch"


def test_the_fake_one_says_nothing_that_the_real_one_does_not_know() -> None:
    assert set().union(*FAKE) <= set().union(*REAL)
