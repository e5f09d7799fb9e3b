"""The recordings of real agents, which other clients have made, are in the format of cassettes."""

from __future__ import annotations

import pytest

from codex_proxy.cassettes.folder import Folder
from codex_proxy.cassettes.format import read_capture
from codex_proxy.cassettes.settings import CassetteError
from tests.captures import FOLDER, names_of, text_of_capture

DIALECTS = ("acp", "app-server", "claude-code", "exec", "proto")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_recording_that_is_read_and_written_is_the_same_file(dialect: str) -> None:
    for name in names_of(dialect)[::10]:
        path = FOLDER / dialect / f"{name}.jsonl"
        capture = read_capture(path)
        assert capture.name == name
        assert [session.dialect for session in capture.old_sessions] == [dialect]
        assert text_of_capture(capture) == path.read_bytes()


def test_a_recording_without_a_request_cannot_be_replayed() -> None:
    with pytest.raises(CassetteError, match=r"text\.jsonl, line 9: there is no `request`"):
        Folder(FOLDER / "exec" / "text.jsonl")
