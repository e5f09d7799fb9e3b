"""codex-proxy keys: what it prints, what it writes, and what doctor says of it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from codex_proxy.app.keyring import read_keys
from codex_proxy.cli import main
from codex_proxy.commands.checks import keys_check
from codex_proxy.commands.keys import put_key
from codex_proxy.core.keys import Key, KeysError, digest_of
from tests.http.serving import settings_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "keys.toml"


def keys(file: Path, *arguments: str, **more: str) -> Result:
    """`codex-proxy keys ...` on this file."""
    environment = {"PROXY_KEYS_FILE": str(file), "PROXY_API_KEY": "", **more}
    return CliRunner().invoke(main, ["keys", *arguments], env=environment)


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_a_new_key_is_printed_alone_and_only_its_hash_is_written_for_the_owner_alone(file: Path) -> None:
    done = keys(file, "add", "laptop")
    assert done.exit_code == 0
    key = done.stdout.strip()
    assert key.startswith("cpx_")
    assert len(key) > 40
    assert key not in file.read_text()
    assert key not in done.stderr
    assert "not shown again" in done.stderr
    assert [(each.name, each.sha256) for each in read_keys(file)] == [("laptop", digest_of(key))]
    assert (mode_of(file), mode_of(file.parent)) == (0o600, 0o700)


def test_the_first_key_of_a_server_tells_that_clients_need_one_from_then_on(file: Path) -> None:
    told = [keys(file, "add", name).stderr for name in ("one", "two")]
    assert ["every client needs a key" in each for each in told] == [True, False]


def test_no_two_keys_are_the_same(file: Path) -> None:
    made = {keys(file, "add", f"k{number}").stdout for number in range(5)}
    assert len(made) == len(read_keys(file)) == 5


@pytest.mark.part("upstream")
def test_an_agent_that_the_settings_do_not_have_is_named(file: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[upstreams.groq]\npreset = "groq"\n\n[upstreams.ollama]\npreset = "ollama"\n')
    for agent, is_known in (("ollama", True), ("olama", False)):
        done = keys(file, "add", agent, "--agent", agent, "--config", str(config))
        assert done.exit_code == 0
        assert ("no agent 'olama'; the agents are groq, ollama" in done.stderr) is not is_known


def test_an_agent_that_a_server_of_one_agent_does_not_have_is_named(file: Path) -> None:
    for agent, is_known in (("codex-app-server", True), ("ollama", False)):
        done = keys(file, "add", agent, "--agent", agent)
        assert done.exit_code == 0
        assert ("no agent 'ollama'; the agents are codex-" in done.stderr) is not is_known


def test_limits_are_written_down_and_listed(file: Path, tmp_path: Path) -> None:
    limits = ["--rpm", "5", "--concurrency", "2", "--sandbox", "read-only", "--plain-model"]
    limits += ["--model", "codex-5", "--model", "gpt-x", "--root", str(tmp_path), "--no-mcp"]
    assert keys(file, "add", "laptop", *limits).exit_code == 0
    [key] = read_keys(file)
    assert (key.rpm, key.concurrency, key.sandbox, key.plain_model) == (5, 2, "read-only", True)
    assert (key.models, key.roots, key.mcp) == (("codex-5", "gpt-x"), (str(tmp_path),), False)
    listed = keys(file, "list").stdout
    for limit in (
        "laptop",
        "5 requests a minute",
        "2 at once",
        "codex-5, gpt-x",
        str(tmp_path),
        "plain model",
        "no MCP servers",
    ):
        assert limit in listed
    told = json.loads(keys(file, "list", "--json").stdout)["keys"]
    assert told[0]["name"] == "laptop"
    assert key.sha256 not in listed + json.dumps(told)


def test_a_name_that_is_taken_is_refused_and_replaced_when_that_is_wanted(file: Path) -> None:
    old = keys(file, "add", "laptop").stdout.strip()
    refused = keys(file, "add", "laptop")
    assert refused.exit_code == 1
    assert "--replace" in refused.stderr
    assert refused.stdout == ""
    new = keys(file, "add", "laptop", "--replace").stdout.strip()
    assert [each.sha256 for each in read_keys(file)] == [digest_of(new)]
    assert new != old


def test_a_key_that_is_removed_is_gone_and_the_others_stay(file: Path) -> None:
    for name in ("one", "two"):
        keys(file, "add", name)
    assert keys(file, "remove", "one").exit_code == 0
    assert [each.name for each in read_keys(file)] == ["two"]
    missing = keys(file, "remove", "one")
    assert (missing.exit_code, "no key 'one'" in missing.stderr) == (1, True)
    assert "No key is left" in keys(file, "remove", "two").stdout


def test_comments_in_the_file_stay(file: Path) -> None:
    keys(file, "add", "one")
    file.write_text("# mine\n" + file.read_text() + "rpm = 7 # slow\n")
    keys(file, "add", "two")
    assert "# mine" in file.read_text()
    assert "# slow" in file.read_text()
    assert [each.rpm for each in read_keys(file)] == [7, None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "A B"], "cannot be a key's name"),
        (["add", "local"], "cannot be a key's name"),
        (["add", "x", "--root", "/nowhere/at/all"], "--root"),
        (["add", "x", "--root", ""], "--root"),
        (["add", "x", "--root", "a" * 5_000], "--root"),
        (["add", "x", "--model", " "], "--model"),
        (["add", "x", "--model", "\udcff"], "--model"),
        (["add", "x", "--agent", ""], "--agent"),
        (["add", "x", "--rpm", "0"], "--rpm"),
        (["add", "x", "--sandbox", "none"], "--sandbox"),
    ],
)
def test_what_makes_no_key_is_refused_in_a_sentence_and_writes_nothing(
    file: Path, arguments: list[str], said: str
) -> None:
    done = keys(file, *arguments)
    assert done.exit_code in (1, 2)
    assert said in done.stderr
    assert not file.exists()


@pytest.mark.parametrize("output", [">/dev/full", ">&-"])
def test_a_key_that_cannot_be_printed_is_not_kept(file: Path, output: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m codex_proxy keys add one {output}', sys.executable],
        env={"PATH": os.defpath, "HOME": str(file.parent), "PROXY_KEYS_FILE": str(file)},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "the key could not be printed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not file.exists() or not read_keys(file)


def test_the_name_of_the_key_in_the_settings_is_taken(file: Path) -> None:
    assert "PROXY_API_KEY" in keys(file, "add", "default", PROXY_API_KEY="x").stderr
    assert "PROXY_API_KEY" in keys(file, "remove", "default", PROXY_API_KEY="x").stderr
    assert "default" in keys(file, "list", PROXY_API_KEY="x").stdout
    assert keys(file, "add", "default").exit_code == 0


def test_a_broken_file_is_left_as_it_is(file: Path) -> None:
    file.parent.mkdir()
    file.write_text("[keys.a\n")
    for arguments in (["add", "b"], ["remove", "a"], ["list"]):
        done = keys(file, *arguments)
        assert (done.exit_code, str(file) in done.stderr) == (1, True)
    assert file.read_text() == "[keys.a\n"
    assert os.listdir(file.parent) == ["keys.toml"]


def test_a_link_to_the_file_stays_a_link(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    file.parent.mkdir()
    link.symlink_to(file)
    keys(link, "add", "one")
    assert link.is_symlink()
    assert [each.name for each in read_keys(file)] == ["one"]


def test_a_file_that_cannot_be_written_is_reported_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    done = keys(tmp_path / "state" / "keys.toml", "add", "one")
    assert (done.exit_code, "keys.toml" in done.stderr) == (1, True)


def test_changes_at_the_same_time_do_not_undo_each_other(file: Path) -> None:
    def put(name: str) -> None:
        for number in range(10):
            key = Key(name=f"{name}{number}", sha256=digest_of(f"{name}{number}"))
            put_key(file, key, replace=False)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(put, ("a", "b", "c")))
    assert len(read_keys(file)) == 30


# --- doctor -------------------------------------------------------------------------------------


def check_of_keys(tmp_path: Path, **more: Any) -> Any:
    return keys_check(settings_of(tmp_path, **more))


def test_doctor_says_whether_a_key_is_needed_and_whose_there_are(file: Path, tmp_path: Path) -> None:
    assert (check_of_keys(tmp_path).status, check_of_keys(tmp_path).facts["exists"]) == ("ok", False)
    keys(file, "add", "laptop")
    assert (check_of_keys(tmp_path).status, check_of_keys(tmp_path).facts["count"]) == ("ok", 1)
    assert "laptop" in check_of_keys(tmp_path).message
    keys(file, "remove", "laptop")
    assert check_of_keys(tmp_path).status == "warning"


def test_doctor_fails_a_broken_file(file: Path, tmp_path: Path) -> None:
    file.parent.mkdir()
    file.write_text("[keys.a]\nsha256 = 1\n")
    check = check_of_keys(tmp_path)
    assert (check.status, "[keys.a]" in check.message, str(file) in check.advice) == ("failed", True, True)


@pytest.mark.parametrize(("mode", "said"), [(0o640, "read"), (0o604, "read"), (0o620, "changed")])
def test_doctor_warns_of_a_file_that_is_open_to_others(
    file: Path, tmp_path: Path, mode: int, said: str
) -> None:
    put_key(file, Key(name="a", sha256=digest_of("a")), replace=False)
    file.chmod(mode)
    check = check_of_keys(tmp_path)
    assert (check.status, said in check.message, "chmod 600" in check.advice) == ("warning", True, True)
    assert "chmod 600" in keys(file, "list").stdout


def test_a_file_that_is_too_large_is_not_read(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"#" * (2 << 20))
    with pytest.raises(KeysError, match="larger"):
        read_keys(file)
