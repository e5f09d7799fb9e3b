"""Snapshots: a turn of a session is kept with the files of its folder before and after it, by the real `git`."""

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, Field

from codex_proxy.parts import Part


class SnapshotSettings(BaseModel, defer_build=True):
    snapshots: Literal["off", "sessions", "all"] = Field(
        "off",
        description="whether files are kept before and after turns that may write: of sessions, or all "
        "(docs/snapshots.md)",
    )
    snapshot_wait: float = Field(
        10.0,
        gt=0,
        le=600,
        description="seconds that a turn waits for the snapshot before it; then it goes on without one",
    )
    snapshot_max_files: int = Field(
        200_000,
        gt=0,
        le=2_000_000,
        description="maximum files and folders of a folder that is kept, with those that a `.gitignore` leaves out",
    )
    snapshot_max_bytes: int = Field(
        2 << 30, gt=0, description="maximum bytes of a folder's files that are kept together"
    )
    snapshot_max_total_bytes: int = Field(
        20 << 30,
        gt=0,
        description="bytes of all snapshots together, above which those of the oldest turns are removed; folders with "
        "worktrees may have half of them, and above it there are no new worktrees",
    )
    snapshot_artifacts: str = Field(
        "",
        description="patterns between commas, as in a .gitignore: which files that turns have added or changed are "
        "artifacts of their sessions",
    )
    worktrees: Path | None = Field(
        None,
        description="folder of the worktrees of sessions; without it one beside the state folder, with `-worktrees` "
        "behind its name",
    )
    snapshot_max_file_bytes: int = Field(
        32 << 20, gt=0, le=1 << 30, description="largest file that is kept, in bytes; larger ones are named"
    )


PART: Final = Part(
    name="snapshots",
    page="snapshots.md",
    uses=("sessions",),
    settings="codex_proxy.parts.snapshots:SnapshotSettings",
    endpoints="codex_proxy.parts.snapshots.endpoints:ENDPOINTS",
    checks="codex_proxy.parts.snapshots.server_part:checks",
    exported="codex_proxy.parts.snapshots.server_part:exported",
    server="codex_proxy.parts.snapshots.server_part:server_part",
)
