"""Only `codex_proxy/files/private.py` makes files and folders: a source that does so by itself is found."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.syntax import parse

ROOT = Path(__file__).parents[2] / "codex_proxy"
MAKES = frozenset(
    {"write_text", "write_bytes", "mkdir", "makedirs", "touch", "mkstemp", "NamedTemporaryFile"}
)
WITH_A_MODE = {
    "store/sqlite/opening.py": {"O_CREAT"},
    "agents/codex/plain_home.py": {"O_CREAT"},
    "files/placed.py": {"O_CREAT", "mkdir"},
    "files/writing.py": {"O_CREAT", "mkdir"},
    "parts/snapshots/forking.py": {"mkdir"},
}
"""They give the mode in the call: files that are only locked, and what is made in a folder of the user."""


def makers(source: str) -> list[str]:
    """Calls that make a file or folder with whatever mode the umask leaves."""
    found: list[str] = []
    if not any(name in source for name in (*MAKES, "O_CREAT", "open(")):  # it takes longer to parse
        return found
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in {*MAKES, "O_CREAT"}:
            found.append(node.attr)
        elif isinstance(node, ast.Call):
            said = [each.value for each in node.args if isinstance(each, ast.Constant)]
            modes = [mode for mode in said if isinstance(mode, str) and set(mode) & set("wax")]
            if modes and ast.unparse(node.func).rpartition(".")[2] == "open":
                found += [f"open {mode}" for mode in modes]
    return found


def test_nothing_is_written_but_through_this_module() -> None:
    assert makers("Path(a).mkdir(); open(a, 'xb'); b.open('w'); os.open(c, os.O_CREAT)") != []
    wrong = {}
    for file in sorted(ROOT.rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        found = makers(file.read_text("utf-8"))
        if name != "files/private.py" and not set(found) <= WITH_A_MODE.get(name, set()):
            wrong[name] = found
    assert wrong == {}
