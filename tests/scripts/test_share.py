"""`--share`: continuous integration runs a part of the exhaustive tests, told by the tree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("tests/process/test_spawner.py", "tests/process/test_child.py", "tests/store/test_removal.py")


def collected(*options: str) -> frozenset[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-n", "0", *options, *FILES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return frozenset(re.findall(r"^tests/\S+::.+$", done.stdout, re.MULTILINE))


@pytest.mark.exhaustive  # each collection takes seconds
def test_the_shares_together_are_all_tests_and_each_has_those_of_the_default_run() -> None:
    whole, default = collected("--all"), collected()
    shares = [collected("--all", "--share", f"{number}/2") for number in (0, 1)]
    assert default < shares[0] < whole
    assert default < shares[1] < whole
    assert shares[0] | shares[1] == whole
    assert shares[0] & shares[1] == default
