"""The locks: complete, in step with pyproject.toml, and the same on every machine."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.missing import PACKAGES
from tests.scripts.checkout import ROOT

PIN = re.compile(r"^[a-z0-9.-]+==[^\s;]+( ; [^/:]+)?$")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    "runtime": ("mcp",),
    "codex": ("codex", "mcp"),
    "test": ("test",),
    "dev": ("codex", "test", "dev", "mcp"),
}


def lines(lock: str) -> list[str]:
    return (ROOT / "requirements" / f"{lock}.txt").read_text().splitlines()


def pins(lock: str) -> dict[str, str]:
    """The versions of a lock by the name of the package."""
    parsed = (Requirement(line) for line in lines(lock))
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in parsed}


@pytest.mark.parametrize("lock", EXTRAS)
def test_a_lock_holds_pins_and_nothing_of_the_machine_that_made_it(lock: str) -> None:
    assert [line for line in lines(lock) if not PIN.match(line)] == []


@pytest.mark.parametrize(("lock", "extras"), EXTRAS.items())
def test_every_dependency_is_pinned_to_a_version_that_it_allows(lock: str, extras: tuple[str, ...]) -> None:
    pinned = pins(lock)
    wanted = [*PROJECT["dependencies"]]
    for extra in extras:
        wanted += PROJECT["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is in no lock: run scripts/lock"
        assert requirement.specifier.contains(version), f"{requirement} is locked to {version}"


@pytest.mark.parametrize(("smaller", "larger"), [("runtime", "codex"), ("codex", "dev"), ("test", "dev")])
def test_the_locks_contain_each_other(smaller: str, larger: str) -> None:
    assert pins(smaller).items() <= pins(larger).items()


def test_a_first_run_of_the_tests_installs_far_less_than_all_of_them_need() -> None:
    assert len(pins("test")) * 5 <= len(pins("dev")) * 3


def test_the_packages_that_tests_may_lack_are_in_no_smaller_lock() -> None:
    names = {name.replace("_", "-") for name in PACKAGES}
    assert names.isdisjoint(pins("test"))
