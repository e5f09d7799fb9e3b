"""What the server leaves on disk is for its owner alone, whatever the umask is, and it leaves nothing in /tmp."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from codex_proxy.app.start_checks import close_state_folder
from tests.real.codex_home import CodexHome, make_codex_home
from tests.real.model_server import model_server
from tests.real.proxy import ProxyProcess, proxy_process


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_others(folder: Path) -> list[str]:
    """Files that somebody else can reach and read or change."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not mode_of(path) & 0o077:
            continue
        if not path.is_dir():
            found.append(f"{path} {mode_of(path):o}")
        else:
            found += open_to_others(path)
    return found


async def use(proxy: ProxyProcess) -> None:
    """A chat, a stored response and a conversation."""
    await proxy.client.chat.completions.create(
        model="codex-5", messages=[{"role": "user", "content": "[[model:text]] Hello."}]
    )
    conversation = await proxy.client.conversations.create(metadata={"topic": "mine"})
    await proxy.client.responses.create(model="codex-5", input="[[model:text]]", conversation=conversation.id)


@pytest.fixture
def careless() -> Iterator[None]:
    """A umask that hides nothing, for the server to inherit."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.sampled(every=2, first=1)
@pytest.mark.parametrize("agent", ["fake", pytest.param("codex-app-server", marks=pytest.mark.real)])
async def test_nothing_on_disk_is_open_to_others_and_nothing_is_left_in_the_temporary_folder(
    tmp_path: Path, careless: None, agent: str
) -> None:
    temporary, state = tmp_path / "tmp", tmp_path / "state"
    temporary.mkdir()
    state.mkdir(mode=0o755)
    async with model_server() as model:
        home: CodexHome = make_codex_home(tmp_path, model.base_url)
        more = {"TMPDIR": str(temporary)}
        async with proxy_process(home, "--agent", agent, environment=more) as proxy:
            await use(proxy)
            while_it_runs = open_to_others(state)
            os.kill(proxy.pid, 15)
            assert await proxy.exit() == 0
    assert while_it_runs == []
    assert open_to_others(state) == []
    assert {"store.sqlite3"} <= {path.name for path in state.iterdir()}
    assert list(temporary.iterdir()) == []
    assert list(home.workdir.iterdir()) == []


def test_the_default_state_folder_is_closed_where_it_was_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "codex-proxy"
    close_state_folder(folder)
    assert not folder.exists()
    folder.mkdir(mode=0o755)
    close_state_folder(folder)
    assert mode_of(folder) == 0o700


def test_a_folder_that_the_operator_named_keeps_its_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    close_state_folder(folder)
    assert mode_of(folder) == 0o755
