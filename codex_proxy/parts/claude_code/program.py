"""The program of Claude Code: of the settings, or on PATH."""

from __future__ import annotations

import os
import shutil


def find_claude(named: str | None, search_path: str) -> str | None:
    """Returns the path of the program to start: of `named` in the settings, else of `claude` on `search_path`; None if
    there is none.
    """
    found = shutil.which(os.path.expanduser(named or "claude"), path=search_path)
    return found and os.path.abspath(found)  # children start in another folder
