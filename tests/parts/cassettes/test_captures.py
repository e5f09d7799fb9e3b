"""The recordings of real agents in `tests/golden`, which other clients have made, are no cassettes."""

from __future__ import annotations

import pytest

from codex_proxy.parts.cassettes.replay import Folder
from codex_proxy.parts.cassettes.settings import CassetteError
from tests.captures import FOLDER


def test_a_recording_without_a_request_cannot_be_replayed() -> None:
    with pytest.raises(CassetteError, match=r"text\.jsonl, line 9: there is no `request`"):
        Folder(FOLDER / "exec" / "text.jsonl")
