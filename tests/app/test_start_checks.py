"""What keeps a server from starting is said with what to change."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from codex_proxy.app.start_checks import check, listen_error
from codex_proxy.app.system import SystemClock
from codex_proxy.core.faults import UserError
from tests.http.serving import fake_proxy, settings_of


def test_a_workdir_whose_name_no_agent_can_be_sent_is_refused(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/w\xf6rk"))
    folder.mkdir()
    with pytest.raises(
        UserError, match=r"^--workdir: the name .*w\\xf6rk.* is not UTF-8\. Rename the folder"
    ):
        check(settings_of(tmp_path, workdir=folder), SystemClock(), {})


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.EADDRINUSE, "error while attempting ..."),
            "Address already in use. Give another --port; ",
        ),
        (OSError(errno.EACCES, "error while attempting ..."), "Permission denied. Ports below 1024"),
        (
            OSError(errno.EADDRNOTAVAIL, "..."),
            "Cannot assign requested address. Give an address of this machine",
        ),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "Name or service not known. Give an address",
        ),
    ],
)
def test_an_address_that_cannot_be_used_is_explained_by_its_reason(
    error: OSError, said: str, tmp_path: Path
) -> None:
    assert str(listen_error(settings_of(tmp_path), error)).startswith(f"cannot listen on 127.0.0.1:0: {said}")


async def test_a_port_that_is_taken_is_named_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"^cannot listen on 127\.0\.0\.1:{port}: Address already in use\. Give"
        ):
            async with fake_proxy(tmp_path, port=port):
                pass
