"""The uploaded files that this server has put into the folders of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import structlog

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.files.placed import FileMark, remove_placed

log = structlog.get_logger(__name__)


class FileResource(msgspec.Struct, frozen=True, kw_only=True):
    """An uploaded file that was put into the session's folder, through Anthropic's API. `path`: below `folder`.
    `inode`, `size` (bytes) and `modified` (nanoseconds since 1970) tell it from another file there.
    """

    id: str
    file_id: str
    folder: str
    path: str
    inode: int
    size: int
    modified: int
    created_at: int


def changing_files(id: str) -> str:
    """Returns what `Sessions.changing` holds while the files of a session change."""
    return f"{id}/resources"


async def remove_files(files: Sequence[FileResource]) -> None:
    """Removes files from the folder, but for those that were changed or replaced there."""
    for each in files:
        mark = FileMark(each.inode, each.size, each.modified)
        try:
            await beside_the_loop(partial(remove_placed, each.folder, each.path.split("/"), mark), long=True)
        except OSError as error:
            log.warning("resource_not_removed", reason=str(error.strerror))
