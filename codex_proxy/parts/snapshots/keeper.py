"""Keeps the files of turns: has a snapshot made before the agent of a turn begins, and after it has ended. A turn waits
for the first one, within a bound, and never fails by it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog
from msgspec.structs import replace

from codex_proxy.core.caches import LruCache
from codex_proxy.core.events import Event, TurnEnded
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.own_errors import trace_of
from codex_proxy.core.turn import Turn
from codex_proxy.parts.snapshots import SnapshotSettings
from codex_proxy.parts.snapshots.difference import differences, newly_ignored
from codex_proxy.parts.snapshots.folders import FolderName, FolderSnapshots, Kept, names_in
from codex_proxy.parts.snapshots.git import GitError
from codex_proxy.parts.snapshots.ignored import rules_above
from codex_proxy.parts.snapshots.records import KIND, TurnFiles, files_in, files_of, record_id, worktree_of
from codex_proxy.parts.snapshots.threads import Writer, Writers, in_thread
from codex_proxy.parts.snapshots.walk import Limits, NotKeptError, RulesUsed, SnapshotError
from codex_proxy.runs.observers import TURN_ORIGIN
from codex_proxy.store.store import Store
from codex_proxy.store.values import NotStored, StoreUnavailable

log = structlog.get_logger(__name__)

R = TypeVar("R")

SNAPSHOT_SECONDS: Final = 120.0
"""Seconds after which a snapshot is given up, also if no turn waits for it any more."""
REF_OF_TURNS: Final = "refs/turns/"
"""How the names of the refs begin that keep the trees of turns."""
OPENING: Final = "opening"
"""How the name of the ref ends that keeps a session's first snapshot, of before its first turn."""
REF_OF_WORKTREES: Final = "refs/worktrees/"
"""How the names of the refs begin that keep the trees of sessions' worktrees."""
RESTARTED: Final = (
    "the server was restarted in the turn, or its .gitignore files have too many patterns to be remembered"
)
REMOVED: Final = "removed: all snapshots together had too many bytes (PROXY_SNAPSHOT_MAX_TOTAL_BYTES)"
CUT_OFF: Final = "the server ended before the turn did, or could not store its end"
RECORDS_AT_ONCE: Final = 200
"""Records that are read at once to find old ones."""
SHARE_REMOVED: Final = 10
"""Which part of the turns is removed at once where there is too little room: a tenth."""
MAX_OPENING: Final = 2
"""Maximum folders of new sessions that are read at once."""
MAX_IN_MEMORY: Final = 4
"""Maximum folders of whose files is kept in memory what is known."""
MAX_RULES: Final = 100_000
"""Maximum patterns and turns that are remembered while turns wait for results."""


class WritingTurn(Writer):
    """A turn of an agent that may write, as its watcher and observer. `kept`: the files from before it, if they are
    kept, and by which rules.
    """

    def __init__(self, keeper: Keeper, owner: str, folder: str) -> None:
        super().__init__(folder)
        self._keeper = keeper
        self.owner = owner
        self.kept: tuple[TurnFiles, RulesUsed] | None = None

    @property
    def id(self) -> str:
        """The id under which the turn's files are kept (in a session that of the session's turn); empty if none are."""
        return "" if self.kept is None else self.kept[0].turn

    def begin(self, _turn: Turn, _agent: str) -> WritingTurn:
        return self

    def add(self, events: Sequence[Event]) -> None:
        if any(isinstance(event, TurnEnded) for event in events):
            self._keeper.on_end(self)


class Keeper:
    """Keeps the files of the turns of sessions. `prepare` is called for every turn (`runs.observers.TurnPreparer`)."""

    def __init__(
        self,
        program: str,
        root: Path,
        store: Store,
        settings: SnapshotSettings,
        clock: Clock,
        max_age: float | None,
    ) -> None:
        """`program`: the git; `root`: the folder of all snapshots; `max_age`: the seconds for which a turn outside of
        sessions is kept (None: no limit).
        """
        self.root = root
        self.limits = Limits(
            settings.snapshot_max_files, settings.snapshot_max_bytes, settings.snapshot_max_file_bytes
        )
        self.program, self._store, self._clock = program, store, clock
        self._keeps_all = settings.snapshots == "all"
        self._max_age = max_age
        self._server = f"{store.leases.records.node}/{secrets.token_hex(8)}"
        """Tells this server from others, also from those that had the same node before it."""
        self._wait = settings.snapshot_wait
        self._max_total = settings.snapshot_max_total_bytes
        self._folders: dict[str, FolderSnapshots] = {}
        self._recent: LruCache[str, FolderSnapshots] = LruCache(MAX_IN_MEMORY)
        self._rules: LruCache[str, RulesUsed] = LruCache(MAX_RULES, _size_of)
        self._unstored: set[str] = set()
        """The refs of turns that were not stored when that was last looked at."""
        self._writers = Writers()
        self._ending: dict[asyncio.Task[None], WritingTurn] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}

    def snapshots_of(self, place: str) -> FolderSnapshots:
        """Returns the snapshots at a place (`FolderName.place`)."""
        found = self._folders.get(place)
        if found is None:
            # Threads ask, too: all get the same one.
            found = self._folders.setdefault(place, FolderSnapshots(self.program, self.root, place))
        return found

    async def take(
        self, name: FolderName, refs: Sequence[str], wait: float, rules: RulesUsed | None = None
    ) -> Kept:
        """Makes a snapshot, which these refs keep. Raises `SnapshotError` if there is none within `wait` seconds."""
        snapshots = self.snapshots_of(name.place)
        until = time.monotonic() + max(wait, SNAPSHOT_SECONDS)
        taking = in_thread(lambda: snapshots.take(name, self.limits, until, refs, rules))
        await asyncio.wait({taking}, timeout=wait)
        if not taking.done():
            taking.add_done_callback(_note_error)
            raise SnapshotError(f"it took longer than {wait:g} s (PROXY_SNAPSHOT_WAIT)")
        self._keep_in_memory(name.place, snapshots)
        try:
            return taking.result()
        except GitError as error:
            raise NotKeptError(str(error)) from None
        except OSError as error:
            raise NotKeptError(f"the state folder cannot be written: {error.strerror}") from None

    def _keep_in_memory(self, place: str, snapshots: FolderSnapshots) -> None:
        self._recent.put(place, snapshots)
        for other, each in list(self._folders.items()):  # threads add to it
            if other not in self._recent:
                each.forget()

    # --- turns --------------------------------------------------------------------------------------

    def expect(self, turn: Turn, session: str) -> None:
        name = FolderName(turn.owner, turn.workdir)
        if _may_write(turn) and len(self._opening) < MAX_OPENING and name.place not in self._opening:
            task = asyncio.get_running_loop().create_task(self._open(name, session), name="opening snapshot")
            self._opening[name.place] = task
            task.add_done_callback(lambda _: self._opening.pop(name.place))

    async def _open(self, name: FolderName, session: str) -> None:
        """Makes the first snapshot of a session's folder, for which no turn waits then."""
        snapshots = self.snapshots_of(name.place)
        try:
            if await in_thread(snapshots.is_known):
                self._keep_in_memory(name.place, snapshots)
            elif not await self._is_full():
                # No turn has the session's id: `prune` removes this one soon.
                await self.take(name, [ref_of(session, OPENING)], SNAPSHOT_SECONDS)
        except (SnapshotError, GitError, OSError) as error:
            log.warning("snapshot_failed", when="opening", reason=str(error))
        except Exception as error:  # noqa: BLE001 - the turns of the session have their own
            log.error("internal_error", **trace_of(error))

    async def prepare(self, turn: Turn) -> WritingTurn | None:
        if not _may_write(turn):
            return None
        await self.rest(turn.workdir)
        writing = WritingTurn(self, turn.owner, turn.workdir)
        self._writers.add(writing)
        origin = TURN_ORIGIN.get()
        if origin.session_turn or self._keeps_all:
            request = None if origin.session_turn else origin.request_id
            try:
                await self._prepare(writing, origin.session_turn or f"turn_{secrets.token_hex(16)}", request)
            except StoreUnavailable as error:
                log.warning("snapshot_failed", when="before", reason=str(error))
            except Exception as error:  # noqa: BLE001 - no turn fails by it
                log.error("internal_error", **trace_of(error))
            except BaseException:
                self._writers.remove(writing)
                raise
        return writing

    async def _prepare(self, turn: WritingTurn, id: str, request: str | None) -> None:
        name = FolderName(turn.owner, turn.folder)
        files = None if request is not None else await files_of(self._store, turn.owner, id)
        rules = self._rules.get(id)
        if files is None:
            files = TurnFiles(
                turn=id,
                folder=turn.folder,
                place=name.place,
                state="running",
                request=request,
                server=self._server,
            )
            try:
                kept = await self.take(name, [ref_of(id, "before")], self._wait)
            except SnapshotError as error:
                log.warning("snapshot_failed", when="before", reason=str(error))
                await self._write_soon(turn.owner, replace(files, state="failed", reason=str(error)))
                return
            files = replace(files, before=kept.tree, left_out=tuple(kept.not_kept))
            rules = kept.rules
            self._rules.put(id, rules)
        elif not files.before:
            return
        elif rules is None:  # what comes now would be missing in what is kept
            await self._write_soon(turn.owner, replace(files, state="failed", after="", reason=RESTARTED))
            return
        files = replace(files, state="running", server=self._server)
        turn.others_wrote |= files.others_wrote
        turn.kept = files, rules  # first, so that whoever reads that it is running finds it at work
        await self._write_soon(turn.owner, files)

    async def rest(self, folder: str) -> None:
        """Waits for the snapshots after earlier turns in this folder, and for what this server writes there."""
        ending = {task for task, turn in self._ending.items() if turn.folder == folder}
        if waited := ending | self._writers.own_in(folder):
            await asyncio.wait(waited, timeout=self._wait)

    async def settle(self, session_turn: str) -> None:
        """Waits for the snapshot after a turn: what its client changes once it knows of the end is not the turn's."""
        ending = {task for task, turn in self._ending.items() if turn.id == session_turn}
        if ending:
            await asyncio.wait(ending, timeout=self._wait)

    def on_end(self, turn: WritingTurn) -> None:
        if turn in self._writers:
            self._writers.remove(turn)
            if turn.kept is not None:
                task = asyncio.get_running_loop().create_task(self._end(turn, *turn.kept))
                self._ending[task] = turn
                task.add_done_callback(self._ending.pop)

    async def _end(self, turn: WritingTurn, files: TurnFiles, rules: RulesUsed) -> None:
        files = replace(files, others_wrote=turn.others_wrote)
        name = FolderName(turn.owner, files.folder)
        try:
            kept = await self.take(name, [ref_of(files.turn, "after")], SNAPSHOT_SECONDS, rules)
            ignored = await in_thread(lambda: self._newly_ignored(files, kept))
        except (SnapshotError, GitError, OSError) as error:
            log.warning("snapshot_failed", when="after", reason=str(error))
            files = replace(files, state="failed", reason=str(error))
        except Exception as error:  # noqa: BLE001 - else it would be told as running for ever
            log.error("internal_error", **trace_of(error))
            files = replace(files, state="failed", reason="an error of the server, which its log has")
        else:
            left_out = tuple(sorted({*files.left_out, *kept.not_kept}))
            files = replace(files, state="kept", after=kept.tree, left_out=left_out, newly_ignored=ignored)
        await self.write(turn.owner, files)

    def _newly_ignored(self, files: TurnFiles, kept: Kept) -> tuple[bytes, ...]:
        if files.before == kept.tree:
            return ()
        with self.snapshots_of(files.place).git.reader() as reader:
            found, outside = differences(reader, files.before, kept.tree), rules_above(files.folder)
            return tuple(newly_ignored(reader, found, kept.tree, kept.rules.outside, outside))

    async def _write_soon(self, owner: str, files: TurnFiles) -> None:
        """As `write`, but waits no longer for the store than for a snapshot."""
        try:
            async with asyncio.timeout(self._wait):
                await self.write(owner, files)
        except TimeoutError:
            log.warning("snapshot_failed", when="writing", reason="the store does not answer")

    async def write(self, owner: str, *files: TurnFiles) -> None:
        """Stores what is kept of turns, unless their session was deleted."""
        try:
            await self._store.write_records(owner, [each.record(self._clock.epoch()) for each in files])
        except NotStored:
            pass  # the session was deleted meanwhile
        except StoreUnavailable as error:
            log.warning("snapshot_failed", when="writing", reason=str(error))

    # --- what is asked for --------------------------------------------------------------------------

    def is_working_in(self, folder: str) -> bool:
        """Whether a turn that may write works in the folder, above it or below it, or this server writes there."""
        return self._writers.is_anyone_in(folder)

    async def write_in(self, folder: str, work: Callable[[], R], *others: str) -> R:
        """Does `work`, which writes in a folder, in a thread. Turns that begin there meanwhile wait, within a bound, as
        those in `others`, which must stay as they are meanwhile.
        """
        return await self._writers.write((folder, *others), work)

    async def files(self, owner: str, turn: str) -> TurnFiles | None:
        """Returns what is kept of a turn, if anything; waits for a snapshot that is being made."""
        ending = {task for task, each in self._ending.items() if (each.owner, each.id) == (owner, turn)}
        if ending:
            await asyncio.wait(ending, timeout=SNAPSHOT_SECONDS)
        return await files_of(self._store, owner, turn)

    def works_on(self, turn: str) -> bool:
        at_work = (*self._writers.all(), *self._ending.values())
        return any(isinstance(each, WritingTurn) and each.id == turn for each in at_work)

    async def with_end(self, owner: str, files: TurnFiles) -> TurnFiles:
        """Returns what is kept of a turn outside of sessions: as failed if it is stored as running, and no server works
        on it. Raises `StoreUnavailable`.
        """
        if files.state != "running" or self.works_on(files.turn) or await self._is_of_other_server(files):
            return files
        found = await files_of(self._store, owner, files.turn) or files  # it may have ended just now
        return replace(found, state="failed", reason=CUT_OFF) if found.state == "running" else found

    async def _is_of_other_server(self, files: TurnFiles) -> bool:
        """Whether another server that runs now works on the turn."""
        node, own = (server.partition("/")[0] for server in (files.server, self._server))
        return node != own and any(each.id == node for each in await self._store.leases.nodes())

    async def prune(self) -> None:
        """Removes what belongs to turns that are no longer stored, and were not the last time: what a turn that begins
        just now has kept is stored a moment later. While there is too little room, snapshots at the opening of sessions
        go at once, before those of turns.
        """
        await self._remove_old()
        unstored: set[str] = set()
        is_full = await self._is_full()
        for place, name in await asyncio.to_thread(names_in, self.root):
            snapshots = self.snapshots_of(place)
            try:
                refs = await in_thread(snapshots.refs)
                lost = [ref for ref in refs if not await self._is_wanted(name.owner, ref)]
                unstored.update(lost)
                gone = [ref for ref in lost if ref in self._unstored or (is_full and _is_opening(ref))]
                # Most of what an opening keeps, its first turn keeps, too, and others may be at work.
                with_objects = is_full or not all(map(_is_opening, gone))
                if gone or not refs:
                    await in_thread(partial(snapshots.remove, gone, with_objects=with_objects))
                if not await asyncio.to_thread(snapshots.path.exists):
                    self._folders.pop(place, None)
                elif not self.is_working_in(name.folder):
                    await in_thread(snapshots.tidy)
            except (GitError, OSError, SnapshotError) as error:
                log.warning("snapshots_not_pruned", reason=str(error))
        self._unstored = unstored
        try:
            await self._make_room()
        except (GitError, OSError, SnapshotError) as error:
            log.warning("snapshots_not_pruned", reason=str(error))

    async def _remove_old(self) -> None:
        """Removes the records of old turns outside of sessions: no session takes them with it. Raises
        `StoreUnavailable`.
        """
        if self._max_age is None:
            return
        before, after = self._clock.epoch() - self._max_age, 0
        while rows := await self._store.records_of_kind(KIND, after, RECORDS_AT_ONCE):
            after = rows[-1][0]
            for _, owner, record in rows:
                if record.created >= before:
                    return  # later rows are younger
                if not self.works_on(files_in(record).turn):
                    await self._store.delete_record(owner, *record.key)

    async def _make_room(self) -> None:
        """Removes what is kept of the oldest turns while all snapshots together have too many bytes. Folders with
        worktrees have half of them: what these need stays, and would push out the snapshots of all other folders.
        """
        places, apart = await in_thread(self._places)
        await self._make_room_in(apart, self._max_total // 2)
        await self._make_room_in(places, self._room_beside(await in_thread(partial(self._bytes_of, apart))))

    async def _make_room_in(self, places: set[str], room: int) -> None:
        while (await in_thread(partial(self._bytes_of, places))) > room:
            turns = await self._turns_by_age(places)
            oldest = turns[: max(1, len(turns) // SHARE_REMOVED)]
            if not oldest:
                return
            log.info("snapshots_removed", turns=len(oldest), reason="PROXY_SNAPSHOT_MAX_TOTAL_BYTES")
            lost: dict[str, list[str]] = {}
            for _, place, owner, files, refs in oldest:
                await self.write(owner, replace(files, state="failed", before="", after="", reason=REMOVED))
                lost.setdefault(place, []).extend(refs)
            for place, refs in lost.items():
                await in_thread(partial(self.snapshots_of(place).remove, refs))

    async def _is_full(self) -> bool:
        """Whether the snapshots of folders without worktrees have more bytes than they may."""

        def look() -> bool:
            places, apart = self._places()
            return self._bytes_of(places) > self._room_beside(self._bytes_of(apart))

        return await in_thread(look)

    def _room_beside(self, apart: int) -> int:
        """Returns the bytes that folders without worktrees may have, beside those with them: at least half of all."""
        return max(self._max_total - apart, self._max_total // 2)

    def _bytes_of(self, places: Iterable[str]) -> int:
        return sum(self.snapshots_of(place).git.size for place in places)

    def _places(self) -> tuple[set[str], set[str]]:
        """Returns all places, in two sets: the second has those with what worktrees need, of them and of the folders of
        which they were made.
        """
        places = {place for place, _ in names_in(self.root)}
        apart = {place for place in places if self.snapshots_of(place).git.has_refs(REF_OF_WORKTREES)}
        return places - apart, apart

    def has_room_for_worktrees(self) -> bool:
        """Whether the snapshots of folders with worktrees have no more than half of the bytes. Blocks."""
        _, places = self._places()
        return self._bytes_of(places) <= self._max_total // 2

    async def _turns_by_age(
        self, places: Container[str]
    ) -> list[tuple[float, str, str, TurnFiles, list[str]]]:
        """Returns the turns that are not at work and of which something is kept, the oldest first: with the time, place
        and owner, and their refs there.
        """
        found = []
        for place, name in await asyncio.to_thread(names_in, self.root):
            if place not in places:
                continue
            of_turns: dict[str, list[str]] = {}
            for ref in await in_thread(self.snapshots_of(place).refs):
                if ref.startswith(REF_OF_TURNS):
                    of_turns.setdefault(id_in(ref), []).append(ref)
            for turn, refs in of_turns.items():
                record = await self._store.record(name.owner, KIND, record_id(turn))
                if record is not None and not self.works_on(turn):
                    files = files_in(record)
                    found.append((record.created, place, name.owner, files, refs))
        return sorted(found, key=lambda each: each[0])

    async def _is_wanted(self, owner: str, ref: str) -> bool:
        if ref.startswith(REF_OF_WORKTREES):
            return await worktree_of(self._store, owner, id_in(ref)) is not None
        if not ref.startswith(REF_OF_TURNS):
            return True
        return await files_of(self._store, owner, id_in(ref)) is not None

    async def close(self) -> None:
        """Waits for the snapshots after turns that have ended."""
        for task in self._opening.values():
            task.cancel()
        if self._ending:
            await asyncio.wait(self._ending, timeout=self._wait)


def _may_write(turn: Turn) -> bool:
    return turn.mode == "agent" and turn.sandbox != "read-only" and turn.workdir != ""


def ref_of(turn: str, which: str) -> str:
    return f"{REF_OF_TURNS}{turn}/{which}"


def id_in(ref: str) -> str:
    """Returns the id of the turn, or of the session with a worktree, to which a ref belongs."""
    return ref.split("/")[2]


def _is_opening(ref: str) -> bool:
    return ref.startswith(REF_OF_TURNS) and ref.endswith(f"/{OPENING}")


def _size_of(_: str, rules: RulesUsed) -> int:
    files = [*rules.files.values(), *(file for _, file in rules.outside.files)]
    return 1 + sum(len(file.patterns) for file in files)


def _note_error(taking: asyncio.Future[Kept]) -> None:
    if not taking.cancelled() and (error := taking.exception()) is not None:
        log.warning("snapshot_failed", when="late", reason=type(error).__name__)
