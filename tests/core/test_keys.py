"""The text of a keys file, and who a key is."""

from __future__ import annotations

from typing import Any

import pytest
import tomli_w

from codex_proxy.core.keys import (
    MAX_KEYS,
    Key,
    KeysError,
    KeySet,
    digest_of,
    parse_keys,
    table_of,
    with_default,
)

DIGEST = digest_of("a key")


def text_of(**tables: Any) -> str:
    return tomli_w.dumps(
        {"keys": {name: {"sha256": digest_of(name), **table} for name, table in tables.items()}}
    )


def test_a_key_has_the_limits_that_its_table_says() -> None:
    table: dict[str, Any] = {
        "rpm": 30,
        "concurrency": 2,
        "models": ["codex-5", "gpt-5-low"],
        "sandbox": "read-only",
        "roots": ["/home/me/src"],
        "plain_model": True,
        "mcp": False,
        "created": "2025-01-31",
    }
    [key] = parse_keys(text_of(laptop=table))
    assert (key.name, key.rpm, key.concurrency) == ("laptop", 30, 2)
    assert (key.models, key.roots) == (("codex-5", "gpt-5-low"), ("/home/me/src",))
    assert (key.sandbox, key.plain_model, key.mcp) == ("read-only", True, False)


def test_a_setting_that_a_keys_table_leaves_out_is_as_for_everybody() -> None:
    [key] = parse_keys(text_of(laptop={}))
    assert key == Key(name="laptop", sha256=digest_of("laptop"))


@pytest.mark.parametrize("text", ["", "# nothing\n", "[keys]\n"])
def test_a_file_without_keys_has_none(text: str) -> None:
    assert parse_keys(text) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[keys.a\n", "not valid TOML"),
        ("x = " + "[" * 100_000, "nested too deeply"),
        ("x = " + "9" * 10_000, "not valid TOML"),
        ("\ufeff[keys]\n", "byte order mark"),
        ("[key.a]\n", "'key'"),
        ("keys = 1\n", "tables"),
        ("[keys]\na = 1\n", "[keys.a]"),
        ("[keys.a]\n", "sha256"),
        (text_of(a={"sha256": "secret"}), "[keys.a]"),
        (text_of(a={"sandox": "read-only"}), "sandox"),
        (text_of(a={"sandbox": "none"}), "[keys.a]"),
        (text_of(a={"rpm": 0}), "[keys.a]"),
        (text_of(a={"rpm": True}), "[keys.a]"),
        (text_of(a={"concurrency": -1}), "[keys.a]"),
        (text_of(a={"models": "codex-5"}), "[keys.a]"),
        (text_of(a={"plain_model": "yes"}), "[keys.a]"),
        (text_of(a={"roots": ["src"]}), "absolute path"),
        (text_of(a={"roots": ["/a\0b"]}), "absolute path"),
        (text_of(a={"name": "b"}), "[keys.a]"),
        (text_of(local={}), "'local'"),
        (text_of(**{"A B": {}}), "'A B'"),
        (text_of(a={"sha256": DIGEST}, b={"sha256": DIGEST}), "same key"),
        (text_of(**{f"k{number}": {} for number in range(MAX_KEYS + 1)}), str(MAX_KEYS)),
    ],
)
def test_a_file_with_something_wrong_in_it_is_refused_with_the_place(text: str, said: str) -> None:
    with pytest.raises(KeysError) as fault:
        parse_keys(text)
    assert said in str(fault.value)


def test_a_key_that_is_written_down_is_read_back() -> None:
    key = Key(
        name="a", sha256=DIGEST, rpm=3, models=("m",), roots=("/r",), sandbox="read-only", plain_model=True
    )
    assert parse_keys(tomli_w.dumps({"keys": {"a": table_of(key)}})) == (key,)


def test_a_key_is_found_by_its_digest_alone() -> None:
    keys = KeySet(parse_keys(text_of(one={}, two={})))
    found = keys.by_digest(digest_of("two"))
    assert found is not None
    assert found.name == "two"
    assert keys.by_digest(digest_of("three")) is None
    assert keys.by_digest("") is None


def test_the_key_of_the_settings_is_called_default() -> None:
    keys = KeySet(with_default(parse_keys(text_of(one={})), "pässword \udcff"))
    assert [key.name for key in keys.keys] == ["default", "one"]
    found = keys.by_digest(digest_of("pässword \udcff"))
    assert found is not None
    assert found.name == "default"


def test_two_keys_of_one_name_are_refused() -> None:
    with pytest.raises(KeysError, match="default"):
        with_default(parse_keys(text_of(default={})), "key")
    with pytest.raises(KeysError, match="same key"):
        with_default(parse_keys(text_of(one={})), "one")
    assert with_default(parse_keys(text_of(default={})), None)[0].name == "default"
