"""The flag `--record-missing`, which takes the folder of `--replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from codex_proxy.parts.cassettes.settings import table_of
from codex_proxy.settings.load import load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text("")
    return tmp_path / "config.toml"


def test_the_flag_record_missing_records_into_the_folder_that_is_replayed(file: Path) -> None:
    given: dict[str, Any] = {"replay": "/a", "record_missing": True}
    found = table_of(load(given, file))
    assert (found.record, found.replay) == (Path("/a"), Path("/a"))
    assert table_of(load({**given, "record": "/b"}, file)).record == Path("/b")


def test_the_flag_record_missing_needs_a_folder_to_replay(file: Path) -> None:
    with pytest.raises(click.UsageError, match="--record-missing needs --replay"):
        load({"record_missing": True}, file)
