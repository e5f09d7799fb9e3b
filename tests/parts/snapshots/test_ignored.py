"""The rules of `.gitignore`, compared with those of the real git."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from codex_proxy.parts.snapshots.ignored import MAX_PATTERNS, Rules, parse
from tests.cpu_time import assert_cpu_time_below

PATHS = (
    *(
        "a",
        "b",
        "a.log",
        "foo/a",
        "foo/a.log",
        "foo/bar/a",
        "foo/bar/baz/a",
        "x/foo/a",
        "#c",
        "!d",
        "e ",
        "[f]",
    ),
    *("build/x", "x/build/y", "doc/a.txt", "doc/b/a.txt", "g*", "gh", "a\\b", "Z", "k.tmp", "foo/k.tmp/in"),
)
PATTERNS = (
    *("a", "/a", "foo/a", "/foo/", "foo", "*.log", "**/a", "foo/**", "foo/**/a", "a/**/b", "doc/*.txt", "**"),
    *("# a", "\\#c", "\\!d", "e ", "e\\ ", "[a-c]", "[!a]", "[^a]", "g\\*", "?", "build/", "*/a", "foo/*/a"),
    *(
        "*\n!a",
        "*\n!*/\n!a",
        "foo\n!foo/a",
        "*.tmp/",
        "\ufeffa",
        "a\r",
        "/",
        "//",
        "***",
        "**/",
        "[",
        "a**b",
        "[]a]",
    ),
)


@pytest.mark.parametrize("patterns", PATTERNS)
def test_the_rules_are_those_of_git(patterns: str, tmp_path: Path) -> None:
    for path in PATHS:
        if not (tmp_path / path).exists():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text("")
    run(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text(patterns + "\n", encoding="utf-8", newline="")
    said = run(tmp_path, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    rules = Rules().with_file(parse((tmp_path / ".gitignore").read_bytes()))
    assert {path for path in PATHS if is_shown(path, rules)} == {path for path in PATHS if path in said}


def run(folder: Path, *arguments: str) -> str:
    own = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=own, check=True, capture_output=True, text=True
    ).stdout


def is_shown(path: str, rules: Rules) -> bool:
    *folders, name = path.split("/")
    for folder in folders:
        if rules.leave_out(folder, is_folder=True):
            return False
        rules = rules.below(folder)
    return not rules.leave_out(name, is_folder=False)


def test_a_pattern_with_many_stars_costs_little() -> None:
    names = "/".join(["a" * 250] * 50)
    for pattern in ("*a" * 100 + "b", "**/a*/" * 100 + "b", "*" * 1000 + "b"):
        rules = Rules().with_file(parse(pattern.encode()))
        for name in names.split("/"):
            rules = rules.below(name)
        assert_cpu_time_below(1, partial(rules.leave_out, "a" * 250, is_folder=False))


def test_a_file_has_a_limit_of_patterns() -> None:
    assert len(parse(b"a\n" * (2 * MAX_PATTERNS)).patterns) == MAX_PATTERNS


def test_the_same_rules_one_folder_higher_are_others() -> None:
    file = parse(b"/x\n")
    assert (
        Rules().below("a").with_file(file).below("b").digest
        != Rules().below("a").below("b").with_file(file).digest
    )
