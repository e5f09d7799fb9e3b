"""The keys in force: read anew when their file changes, and the old ones where it is broken."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.app.keyring import CHECK_SECONDS, Keyring
from codex_proxy.app.start_checks import check
from codex_proxy.app.system import SystemClock
from codex_proxy.core.faults import UserError
from codex_proxy.core.keys import Key, KeysError, digest_of
from tests.access.keyed import file_in, key_of, write_keys, write_text
from tests.http.serving import Hands, settings_of


@pytest.fixture
def clock() -> Hands:
    return Hands()


def keyring_of(folder: Path, clock: Hands, api_key: str | None = None) -> Keyring:
    return Keyring(file_in(folder), api_key, clock)


def names_of(keyring: Keyring) -> list[str]:
    return [key.name for key in keyring.current().keys]


def test_a_change_is_in_force_after_a_second_and_the_file_is_not_looked_at_before(
    tmp_path: Path, clock: Hands
) -> None:
    write_keys(tmp_path, one={})
    keyring = keyring_of(tmp_path, clock)
    write_keys(tmp_path, one={}, two={})
    clock.now += CHECK_SECONDS * 0.9
    assert names_of(keyring) == ["one"]
    clock.now += CHECK_SECONDS * 0.2
    assert names_of(keyring) == ["one", "two"]


def test_as_long_as_nothing_changes_the_same_keys_are_given(tmp_path: Path, clock: Hands) -> None:
    write_keys(tmp_path, one={})
    keyring = keyring_of(tmp_path, clock)
    before = keyring.current()
    clock.now += 10 * CHECK_SECONDS
    assert keyring.current() is before


@pytest.mark.parametrize("text", ["[keys.one\n", "[keys.one]\nsha256 = 'short'\n", "[other]\n", "\xff"])
def test_a_broken_file_leaves_the_old_keys_in_force_until_it_is_mended(
    tmp_path: Path, clock: Hands, text: str
) -> None:
    write_keys(tmp_path, one={})
    keyring = keyring_of(tmp_path, clock)
    write_text(tmp_path, text)
    clock.now += CHECK_SECONDS
    if text == "\xff":
        file_in(tmp_path).write_bytes(b"\xff")
    assert names_of(keyring) == ["one"]
    assert keyring.trouble is not None
    assert str(file_in(tmp_path)) in keyring.trouble
    write_keys(tmp_path, two={})
    clock.now += CHECK_SECONDS
    assert names_of(keyring) == ["two"]
    assert keyring.trouble is None


def test_a_file_that_could_not_be_read_just_then_is_read_when_it_can_be(
    tmp_path: Path, clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_keys(tmp_path, one={}, two={})
    keyring = keyring_of(tmp_path, clock)
    write_keys(tmp_path, two={})

    def refusal_of(*given: Any, **more: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("codex_proxy.app.keyring.read_regular", refusal_of)
        for _ in range(3):
            clock.now += CHECK_SECONDS
            assert names_of(keyring) == ["one", "two"]
        assert keyring.trouble is not None
    clock.now += CHECK_SECONDS
    found: tuple[list[str], str | None] = (names_of(keyring), keyring.trouble)
    assert found == (["two"], None)


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path, clock: Hands) -> None:
    write_keys(tmp_path, one={})
    keyring = keyring_of(tmp_path, clock)
    file_in(tmp_path).unlink()
    os.mkfifo(file_in(tmp_path))
    clock.now += CHECK_SECONDS
    assert names_of(keyring) == ["one"]
    assert "it is no regular file" in (keyring.trouble or "")


def test_a_file_that_is_gone_leaves_the_old_keys_in_force(tmp_path: Path, clock: Hands) -> None:
    write_keys(tmp_path, one={})
    keyring = keyring_of(tmp_path, clock)
    file_in(tmp_path).unlink()
    clock.now += CHECK_SECONDS
    assert names_of(keyring) == ["one"]
    assert keyring.trouble is not None
    assert "gone" in keyring.trouble


def test_a_file_without_keys_lets_nobody_in(tmp_path: Path, clock: Hands) -> None:
    write_keys(tmp_path, one={})
    keyring = keyring_of(tmp_path, clock)
    write_keys(tmp_path)
    clock.now += CHECK_SECONDS
    assert (keyring.current().keys, keyring.current().required) == ((), True)


def test_without_a_file_and_a_setting_no_key_is_wanted_until_there_is_a_file(
    tmp_path: Path, clock: Hands
) -> None:
    keyring = keyring_of(tmp_path, clock)
    assert keyring.current().required is False
    write_keys(tmp_path, one={})
    clock.now += CHECK_SECONDS
    assert keyring.current().required is True


def test_the_key_of_the_settings_stays_beside_those_of_the_file(tmp_path: Path, clock: Hands) -> None:
    keyring = keyring_of(tmp_path, clock, "setting")
    assert keyring.current().required is True
    write_keys(tmp_path, one={})
    clock.now += CHECK_SECONDS
    assert names_of(keyring) == ["default", "one"]
    write_keys(tmp_path, default={})
    clock.now += CHECK_SECONDS
    assert names_of(keyring) == ["default", "one"]
    assert keyring.trouble is not None
    found = keyring.current().by_digest(digest_of("setting"))
    assert found is not None
    assert found.name == "default"


def test_a_broken_file_at_the_start_is_an_error_since_there_are_no_older_keys(
    tmp_path: Path, clock: Hands
) -> None:
    write_text(tmp_path, "[keys.one")
    with pytest.raises(KeysError):
        keyring_of(tmp_path, clock)
    with pytest.raises(UserError, match="keys"):
        check(settings_of(tmp_path), SystemClock(), {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "my.host"])
def test_an_address_that_others_reach_wants_a_key(tmp_path: Path, host: str) -> None:
    with pytest.raises(UserError, match="key"):
        check(settings_of(tmp_path, host=host), SystemClock(), {})
    write_keys(tmp_path)
    with pytest.raises(UserError, match="key"):
        check(settings_of(tmp_path, host=host), SystemClock(), {})
    write_keys(tmp_path, one={})
    check(settings_of(tmp_path, host=host), SystemClock(), {})
    file_in(tmp_path).unlink()
    check(settings_of(tmp_path, host=host, api_key="x"), SystemClock(), {})


def test_a_file_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keys add"):
        check(settings_of(tmp_path, keys_file=tmp_path / "missing.toml"), SystemClock(), {})


@pytest.mark.parametrize("wrong", ["nginx", "10.0.0.0/99", "127.0.0.1, x"])
def test_a_proxy_that_is_no_address_stops_the_start(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(UserError, match="PROXY_TRUSTED_PROXIES"):
        check(settings_of(tmp_path, trusted_proxies=wrong), SystemClock(), {})


def test_no_key_is_shown_in_a_keyring(tmp_path: Path, clock: Hands) -> None:
    write_keys(tmp_path, one={})
    shown: Any = repr(keyring_of(tmp_path, clock, "setting").current())
    assert key_of("one") not in shown
    assert "setting" not in shown


def stored_key(name: str, secret: str = "") -> Key:
    return Key(name=name, sha256=digest_of(secret or name))


def test_keys_of_the_store_are_valid_beside_those_of_the_file_and_only_as_long_as_they_are_there(
    tmp_path: Path, clock: Hands
) -> None:
    write_keys(tmp_path, one={})
    keyring = keyring_of(tmp_path, clock)
    keyring.use_stored((stored_key("two"), stored_key("three")))
    assert names_of(keyring) == ["one", "two", "three"]
    write_keys(tmp_path, four={})
    clock.now += CHECK_SECONDS
    assert names_of(keyring) == ["four", "two", "three"]
    keyring.use_stored((stored_key("three"),))
    assert names_of(keyring) == ["four", "three"]


def test_a_key_of_the_file_or_the_settings_comes_before_one_of_its_name_in_the_store(
    tmp_path: Path, clock: Hands
) -> None:
    keyring = keyring_of(tmp_path, clock, api_key="secret")
    keyring.use_stored((stored_key("default"), stored_key("other", "secret"), stored_key("one")))
    assert names_of(keyring) == ["default", "one"]
    assert keyring.current().by_digest(digest_of("default")) is None


def test_a_key_in_the_store_makes_keys_required_also_after_its_removal(tmp_path: Path, clock: Hands) -> None:
    keyring = keyring_of(tmp_path, clock)
    assert not keyring.current().required
    keyring.use_stored((stored_key("one"),))
    assert keyring.current().required
    keyring.use_stored(())
    assert keyring.current().required
