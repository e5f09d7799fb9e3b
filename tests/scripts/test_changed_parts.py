"""Which parts a change concerns, and which tests continuous integration repeats."""

from __future__ import annotations

import pytest

from codex_proxy.parts import KNOWN, parts
from scripts.changed_parts import concerned, used_files
from scripts.repeatable import ROOT, not_repeatable, repeatable


@pytest.mark.parametrize(
    "file",
    [
        *("pyproject.toml", "fake_proto/loop.py", "tests/conftest.py", "tests/golden/a.json"),
        *("codex_proxy/runs/run.py", "codex_proxy/http/turns.py", "codex_proxy/core/repair.py"),
    ],
)
def test_a_change_of_what_every_turn_passes_or_of_no_module_concerns_every_part(file: str) -> None:
    assert concerned({file}) == set(KNOWN)


def test_a_page_concerns_no_part() -> None:
    assert concerned({"docs/agents.md", "README.md"}) == set()


@pytest.mark.parametrize("folder", ["codex_proxy/parts", "tests/parts"])
def test_a_file_of_a_part_concerns_this_part_alone_unless_another_imports_it(folder: str) -> None:
    for part in KNOWN:
        assert concerned({f"{folder}/{part}/not_imported.py"}) == {part}
        assert concerned({f"{folder}/{part}/table.sql"}) == {part}


def test_a_module_of_the_core_concerns_the_parts_that_import_it() -> None:
    there = [part.name for part in parts()]
    assert concerned({"codex_proxy/parts/__init__.py"}) == set(there)
    assert concerned({"codex_proxy/imported_by_nobody.py"}) == set()
    for part in there:
        used = next(file for file in sorted(used_files(part)) if (ROOT / file).is_file())
        assert part in concerned({used})


def test_a_test_is_repeated_only_if_it_is_listed_with_a_reason() -> None:
    listed = repeatable()
    assert 0 < len(listed) <= 10
    for test, reason in listed.items():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text("utf-8")
        assert reason
    assert not_repeatable([*listed, f"{next(iter(listed))}[a]", "tests/a.py::test_b"]) == [
        "tests/a.py::test_b"
    ]
