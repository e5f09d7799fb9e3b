"""What children may take of the machine is what the settings say."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Literal

import pytest

from tests.http.serving import fake_proxy, user

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing tells the limits of another process")


@pytest.mark.parametrize("dialect", ["proto", "app-server"])
async def test_the_agent_s_processes_have_the_limits_of_the_settings(
    tmp_path: Path, dialect: Literal["proto", "app-server"]
) -> None:
    environment = {
        "FAKE_CODEX_PID_FILE": str(tmp_path / "pids"),
        "STREAM_RELEASE_FILE": str(tmp_path / "never"),
    }
    settings = {"child_limits": {"open_files": 321, "address_space": 8 << 30, "processes": 54321}}
    async with (
        fake_proxy(tmp_path, environment, fake_dialect=dialect, **settings) as proxy,
        proxy.open(user("[[fake:text hold=1]]", stream=True)) as reply,
    ):
        await reply.content.readline()
        [pid] = (tmp_path / "pids").read_text().split()
        limits = dict(
            re.findall(r"^Max ([a-z ]+?) {2,}(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
        )
    assert limits["core file size"] == "0"
    assert limits["open files"] == "321"
    assert limits["address space"] == str(8 << 30)
    assert int(limits["processes"]) <= 54321
