"""What a server's responses use: its parts, the operator's settings, their tasks, and the background responses, which
are found by owner (key) and id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec

from codex_proxy.admission.admit import Admission
from codex_proxy.admission.clients import Clients, HeldRights
from codex_proxy.core.caches import subtract
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.interfaces import Clock, IdSource, keep_until_done
from codex_proxy.runs.scheduler import RunScheduler
from codex_proxy.store.health import WriteCheck
from codex_proxy.store.leases import ResponseLease
from codex_proxy.store.store import Store
from codex_proxy.store.usage import UsageRecorder
from codex_proxy.store.values import PendingWebhook
from codex_proxy.surfaces.responses.profile import Profile
from codex_proxy.workers.pdf_reader import PdfReader
from codex_proxy.workers.slots import Slots, share_of

if TYPE_CHECKING:
    from codex_proxy.responses.background import BackgroundResponse
    from codex_proxy.responses.foreground import ForegroundResponse


MAX_LIVE = 1000
"""Maximum background responses, each with its request in RAM."""
CLOSE_SECONDS = 5.0
"""Seconds for tasks to save results when the server stops."""
RETRY_SECONDS = 2.0
"""Seconds between attempts to start a turn, or to reach a store that does not answer."""

T = TypeVar("T")


class ServerTasks:
    """Tasks that continue when the client leaves."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def running(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task, for which `close` waits."""
        return keep_until_done(self._tasks, asyncio.get_running_loop().create_task(work))

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end, even if the caller is cancelled: then nobody gets its `Fault`."""
        task = self.spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            with contextlib.suppress(Fault):
                task.result()
            raise

    async def close(self) -> None:
        """Waits for all tasks; cancels them after `CLOSE_SECONDS`."""
        if not self._tasks:
            return
        await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class BackgroundResponses:
    """The background responses of this server. At most `limit` run, others wait; of several `owners()` one gets at most
    three quarters.
    """

    def __init__(self, limit: int, owners: Callable[[], int] = lambda: 1) -> None:
        self.slots = Slots(limit, owners)
        self.tasks = ServerTasks()
        """The tasks of all responses, also foreground ones."""
        self._owners = owners
        self._live: dict[tuple[str, str], BackgroundResponse] = {}
        self._foreground: dict[tuple[str, str], ForegroundResponse] = {}
        """The running responses that are stored at their end."""
        self._being_created: Counter[str] = Counter()

    @contextlib.contextmanager
    def room(self, owner: str, limit: int) -> Iterator[None]:
        """Yields while a response of `owner` is created. Raises `Fault` CONCURRENCY_EXCEEDED beyond `MAX_LIVE`, the
        owner's `limit` (0: none) or its share.
        """
        if len(self._live) + self._being_created.total() >= MAX_LIVE:
            raise _too_many(
                f"{MAX_LIVE} background responses are running or waiting, which is this server's limit."
            )
        theirs = self._being_created[owner] + sum(name == owner for name, _ in self._live)
        if limit and theirs >= limit:
            raise _too_many(
                f"{limit} background responses of this key are running or waiting, which is its limit."
            )
        if theirs >= share_of(MAX_LIVE, self._owners()):
            raise _too_many(f"{theirs} background responses of this key are running or waiting.")
        self._being_created[owner] += 1
        try:
            yield
        finally:
            subtract(self._being_created, owner)

    def start(self, response: BackgroundResponse, on_end: Callable[[], None] = lambda: None) -> None:
        """Starts a response, which `find` returns until its end, when `on_end` is called."""
        key = (response.owner, response.id)
        self._live[key] = response

        def on_task_done(_: asyncio.Task[None]) -> None:
            self._live.pop(key, None)
            on_end()

        response.start_in(self.tasks).add_done_callback(on_task_done)

    def find(self, owner: str, id: str) -> BackgroundResponse | None:
        return self._live.get((owner, id))

    def start_foreground(self, response: ForegroundResponse, *, stored: bool) -> None:
        """Starts a response whose client waits. One that is `stored` at its end is found until then."""
        key = (response.owner, response.id)
        if stored:
            self._foreground[key] = response
        response.start_in(self.tasks).add_done_callback(lambda _: self._foreground.pop(key, None))

    def find_foreground(self, owner: str, id: str) -> ForegroundResponse | None:
        return self._foreground.get((owner, id))

    @property
    def leases(self) -> list[ResponseLease]:
        return [ResponseLease(each.owner, each.id, each.epoch) for each in self._live.values()]

    async def close(self) -> None:
        """Waits for the tasks, and cancels them after `CLOSE_SECONDS`; the server's next start recovers the rest.
        Call it after all turns.
        """
        await self.tasks.close()


def _too_many(message: str) -> Fault:
    failure = Failure(FaultKind.CONCURRENCY_EXCEEDED, f"{message} Try again later.", retry_after=10)
    return Fault(failure)


class Webhooks(Protocol):
    """A sender of webhooks, which are in the store."""

    def make(self, event_id: str, kind: str, data: Mapping[str, object]) -> Sequence[PendingWebhook]:
        """Returns the webhooks for an event of the type `kind`, to be stored with what it tells."""

    def wake(self) -> None:
        """Called when there may be new webhooks in the store."""


class ResponsesService(msgspec.Struct, frozen=True, kw_only=True):
    runs: RunScheduler
    admission: Admission
    clients: Clients
    rights: HeldRights
    clock: Clock
    ids: IdSource
    usage: UsageRecorder
    store: Store | None
    profile: Profile = "openai"
    """The form of responses and events (`PROXY_RESPONSES_PROFILE`)."""
    heartbeat: float = 15.0
    """Seconds of silence until a comment in a stream; 0: never."""
    conversation_wait: float = 30.0
    """Seconds that a turn waits for another of its conversation."""
    background: BackgroundResponses
    background_recovery: Literal["fail", "rerun"] = "fail"
    """Whether responses that a restart interrupted fail or run again."""
    write_check: WriteCheck | None = None
    """Whether the store takes writes; None without a store."""
    pdfs: PdfReader | None = None
    webhooks: Webhooks | None = None
