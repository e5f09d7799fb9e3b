"""Which changes that strangers have written down may be written into somebody's folder."""

from __future__ import annotations

import os
import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.files.foreign import PROTECTED, why_refused


@pytest.mark.parametrize(
    "path",
    [
        b"a.py",
        b"src/a.py",
        b".gitignore",
        b"..a",
        b"a..",
        b"src/.env",
        b"\xff\xfe",
        b"docs/agents.txt",
        b"git",
        "tür".encode(),
        b"a~1.txt",
    ],
)
def test_what_an_agent_writes_is_allowed(path: bytes) -> None:
    assert why_refused(path) == ""


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/",
        b"/etc/passwd",
        b"C:\\a",
        b"C:a",
        b"..",
        b"../a",
        b"a/../../b",
        b"a/..",
        b"a//b",
        b"a/",
        b"./a",
        b"a\0b",
        b"a" * 300,
        b"a/" * 3000,
    ],
)
def test_a_path_that_is_none_below_the_folder_is_refused(path: bytes) -> None:
    assert why_refused(path)


@pytest.mark.parametrize(
    "name",
    [
        *(
            ".git",
            ".GIT",
            ".Git",
            ".git.",
            ".git ",
            ".git. .",
            ".git::$INDEX_ALLOCATION",
            ".git:a",
            "git~1",
            "GIT~2",
        ),
        *(".g\u200cit", "\u200e.git", ".gi\u202at", ".\u206fgit", ".git\ufeff", ".g\u200dit", ".g\ufe0fit"),
        *("．git", ".ｇit", "a\\.git", ".git\\hooks"),
        *(
            ".codex",
            ".CLAUDE",
            "claude~1",
            ".vscode",
            "VSCODE~1",
            ".idea",
            ".github",
            ".mcp.json",
            ".envrc",
            ".bashrc",
        ),
        *("opencode.json", "AGENTS.override.md", "CLAUDE.local.md", ".kiro", "Jenkinsfile", ".travis.yml"),
        *(
            ".mise.local.toml",
            "x.sublime-project",
            "X.code-workspace",
            ".venv",
            "node_modules",
            "__pycache__",
        ),
        *(".zshenv", ".npmrc", ".husky", "CLAUDE.md", "AGENTS.md", ".cursor", ".ſsh"),
    ],
)
@pytest.mark.parametrize("place", ["{}", "{}/hooks/post-checkout", "deep/er/{}", "deep/{}/config"])
def test_what_programs_obey_is_refused_in_any_spelling(name: str, place: str) -> None:
    assert why_refused(place.format(name).encode())


@pytest.mark.parametrize("name", ["...", ". .", "\u200b", " ", "a/ /b"])
def test_a_name_that_a_file_system_may_read_as_none_is_refused(name: str) -> None:
    assert why_refused(name.encode())


def test_the_protected_names_are_as_the_check_compares_them() -> None:
    assert all(name == name.casefold() and why_refused(name.encode()) for name in PROTECTED)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("l", "a"),
        ("l", "a/b"),
        ("d/l", "../a"),
        ("d/e/l", "../../a"),
        ("l", "./a"),
        ("d/l", ".."),
        ("l", "."),
    ],
)
def test_a_link_within_the_folder_is_allowed(path: str, target: str) -> None:
    assert why_refused(path.encode(), target.encode()) == ""


@pytest.mark.parametrize(
    ("path", "target"),
    [
        *(
            ("l", ""),
            ("l", "/"),
            ("l", "/etc/passwd"),
            ("l", ".."),
            ("l", "../a"),
            ("d/l", "../../a"),
            ("l", "a/../../b"),
        ),
        *(
            ("l", "a/.."),
            ("l", ".git/config"),
            ("d/l", "../.GIT"),
            ("l", "C:\\a"),
            ("l", "\\a"),
            ("l", "..\\a"),
            ("l", "a\0b"),
        ),
    ],
)
def test_a_link_that_may_point_elsewhere_is_refused(path: str, target: str) -> None:
    assert why_refused(path.encode(), target.encode())


@given(
    st.binary(max_size=30),
    st.lists(st.sampled_from([b"..", b".", b"", b"a", b"/", b"b"]), max_size=6).map(b"/".join),
)
def test_no_allowed_path_or_target_leaves_the_folder(path: bytes, target: bytes) -> None:
    if not why_refused(path):
        assert posixpath.normpath(os.path.join(b"/f", path)).startswith(b"/f/")
    if not why_refused(b"d/l", target):
        found = posixpath.normpath(os.path.join(b"/f/d", target))
        assert found == b"/f" or found.startswith(b"/f/")
