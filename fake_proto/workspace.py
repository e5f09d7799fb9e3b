"""Changes files in the folder of a thread, if its sandbox lets it: what the marker's option `files=` says."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def change_files(folder: str, sandbox: str, text: str) -> None:
    """Does what the JSON says, a list of objects, one after the other: `path` gets the content `text` and the `mode`,
    or is a link to `link`, or else is removed, with the folders that become empty. Bytes that are not UTF-8 are
    surrogates (`\\udcff`). Raises `PermissionError` where nothing may be written, and for paths outside of the folder.
    """
    changes = json.loads(text)
    if sandbox not in ("workspace-write", "danger-full-access"):
        raise PermissionError(f"the sandbox {sandbox} lets nothing be written")
    root = os.path.realpath(folder)
    for change in changes:
        path = os.path.join(root, change["path"])
        above = os.path.dirname(path)
        if os.path.commonpath([root, os.path.realpath(above)]) != root or os.path.basename(path) in (
            "",
            ".",
            "..",
        ):
            raise PermissionError(f"{path} is outside of the folder")
        _change(root, path, above, change)


def _change(root: str, path: str, above: str, change: dict[str, Any]) -> None:
    if os.path.lexists(path):
        os.unlink(path)
    if "text" in change:
        os.makedirs(above, exist_ok=True)
        with open(path, "xb") as file:
            file.write(change["text"].encode("utf-8", "surrogateescape"))
        os.chmod(path, change.get("mode", 0o644))
    elif "link" in change:
        os.makedirs(above, exist_ok=True)
        os.symlink(change["link"], path)
    while above != root and os.path.isdir(above) and not os.listdir(above):
        os.rmdir(above)
        above = os.path.dirname(above)
