"""The faults that real answers have, for whoever tests a client: what a test asks for, and what becomes of an answer's
body. Source: docs/cassettes.md#faults-on-demand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.shown_text import excerpt

Kind: TypeAlias = Literal["cut", "reset", "end", "stall", "slow", "repeat", "refuse"]
Place: TypeAlias = Literal["events", "bytes", "character"]

KINDS: Final[Mapping[int, FaultKind]] = {
    400: FaultKind.INVALID_REQUEST,
    401: FaultKind.INVALID_API_KEY,
    403: FaultKind.NOT_ALLOWED,
    404: FaultKind.MODEL_NOT_FOUND,
    429: FaultKind.RATE_LIMITED,
    500: FaultKind.INTERNAL,
    502: FaultKind.UPSTREAM_ERROR,
    503: FaultKind.UNAVAILABLE,
    504: FaultKind.TIMED_OUT,
    529: FaultKind.UNAVAILABLE,
}
"""The fault for each status that a test can ask for. Anthropic's API has 529 for 503, and 500 for 502."""
_PLACES: Final = ("events", "bytes", "character")
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "cut": _PLACES,
    "reset": _PLACES,
    "end": _PLACES,
    "stall": (*_PLACES, "seconds"),
    "slow": ("seconds",),
    "repeat": ("events",),
    "refuse": ("status", "times", "retry_after"),
}
"""The options of each fault."""
MAX_SECONDS: Final = 3600.0
MAX_COUNT: Final = 1 << 30
SLOW_SECONDS: Final = 0.05
_OPTION: Final = re.compile(r"([a-z_]+)=([0-9]{1,10}(?:\.[0-9]{1,6})?)")
_EVENT_END: Final[Mapping[str, bytes]] = {"text/event-stream": b"\n\n", "application/x-ndjson": b"\n"}


class StreamFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. `place` and `count` say where it begins: behind so many events or bytes, or behind the first byte of
    the so-many-th character that has several.
    """

    kind: Kind
    place: Place = "events"
    count: int = 0
    seconds: float = math.inf
    """How long `stall` lasts, or the time between two events of `slow`; infinity: until the client leaves."""
    status: int = 429
    times: int = 1
    """How many requests in a row `refuse` refuses, before one is answered."""
    retry_after: float | None = None

    @property
    def failure(self) -> Failure:
        """The failure of a request that `refuse` refuses."""
        return failure_of(self.status, retry_after=self.retry_after)


def failure_of(status: int, *, retry_after: float | None = None, message: str = "") -> Failure:
    """Returns the failure with a status. Raises `ValueError` if no failure has it."""
    if status not in KINDS:
        known = ", ".join(map(str, KINDS))
        raise ValueError(f"there is no failure with the status {status}; choose one of {known}")
    text = message or f"The test has asked for a failure with the status {status}."
    return Failure(kind=KINDS[status], message=text, retry_after=retry_after)


def fault_of(text: str) -> StreamFault:
    """Reads a fault as the header has it: `cut; events=3`. Raises `ValueError`, whose text says what is expected."""
    kind, *rest = (part.strip() for part in text.split(";"))
    allowed = _OPTIONS.get(kind)
    if allowed is None:
        raise ValueError(f"there is no fault {excerpt(kind)!r}; choose one of {', '.join(_OPTIONS)}")
    found: dict[str, float] = {}
    for part in rest:
        option = _OPTION.fullmatch(part)
        if option is None or option[1] not in allowed or option[1] in found:
            raise ValueError(
                f"{excerpt(part)!r} is no option of {kind!r}; it has {', '.join(f'{each}=N' for each in allowed)}"
            )
        found[option[1]] = float(option[2])
    return _fault(kind, found)


def _fault(kind: str, options: Mapping[str, float]) -> StreamFault:
    places = [each for each in _PLACES if each in options]
    needs_place = "bytes" in _OPTIONS[kind] or kind == "repeat"
    if len(places) != needs_place:
        raise ValueError(f"{kind!r} needs one place: {', '.join(f'{each}=N' for each in _places_of(kind))}")
    place = places[0] if places else "events"
    count, times = options.get(place, 0.0), options.get("times", 1.0)
    status = int(options.get("status", 429))
    seconds = options.get("seconds", SLOW_SECONDS if kind == "slow" else math.inf)
    if not (count.is_integer() and times.is_integer() and max(count, times) <= MAX_COUNT):
        raise ValueError(f"the number of {place} and of times has to be an integer up to {MAX_COUNT}")
    if count == 0 and (kind == "repeat" or place == "character"):
        raise ValueError(f"{kind!r} counts its {place} from 1")
    if seconds > MAX_SECONDS and "seconds" in options:
        raise ValueError(f"`seconds` is at most {MAX_SECONDS:g}")
    failure_of(status)
    given = {"place": place, "count": int(count), "seconds": seconds, "status": status, "times": int(times)}
    return msgspec.convert({"kind": kind, "retry_after": options.get("retry_after"), **given}, StreamFault)


def _places_of(kind: str) -> list[str]:
    return [each for each in _PLACES if each in _OPTIONS[kind]]


class Pause(NamedTuple):
    """Nothing is sent for so many seconds."""

    seconds: float


End: TypeAlias = Literal["cut", "reset", "end"]
"""How an answer ends before its time: its connection is closed or reset, or the answer ends as if it were complete."""
Act: TypeAlias = "bytes | Pause | End"


class FaultyBody:
    """Turns the body of one answer into what is sent of it."""

    def __init__(self, fault: StreamFault, media_type: str) -> None:
        self._fault = fault
        self._event_end = _EVENT_END.get(media_type, b"")
        """What is behind each event; empty for a whole answer, which is one event."""
        self._held = bytearray()
        """The begin of an event that is not complete."""
        self._left = fault.count
        """The events, bytes or characters until the fault."""
        self._done = False
        """Whether the fault is over, or the answer with it."""

    def feed(self, data: bytes) -> list[Act]:
        """Takes the next part of the body."""
        by_place: Mapping[Place, Callable[[bytes], Iterator[Act]]] = {
            "bytes": self._in_bytes,
            "character": self._in_characters,
            "events": self._in_events,
        }
        return [each for each in by_place[self._fault.place](data) if each != b""]

    def finish(self) -> list[Act]:
        """Returns what is left at the body's end."""
        if self._event_end:
            return [bytes(self._held)] if self._held else []
        return [*self._after_event()] if self._fault.place == "events" else []

    def _strike(self) -> Iterator[Act]:
        self._done = True
        kind = self._fault.kind
        if kind == "stall":
            yield Pause(self._fault.seconds)
        elif kind in ("cut", "reset", "end"):
            yield kind

    def _in_bytes(self, data: bytes) -> Iterator[Act]:
        if self._done or len(data) < self._left:
            self._left -= len(data)
            yield data
            return
        yield data[: self._left]
        yield from self._strike()
        yield data[self._left :]

    def _in_characters(self, data: bytes) -> Iterator[Act]:
        if not self._done:
            for index, byte in enumerate(data):
                self._left -= byte >= 0xC0  # the first byte of a character that has several
                if not self._left:
                    yield data[: index + 1]
                    yield from self._strike()
                    yield data[index + 1 :]
                    return
        yield data

    def _in_events(self, data: bytes) -> Iterator[Act]:
        if not (self._left or self._done) and self._fault.kind != "slow":  # before the first event
            yield from self._strike()
        if not self._event_end:
            yield data
            return
        looked = max(0, len(self._held) - len(self._event_end) + 1)
        self._held += data
        begin = 0
        while (end := self._held.find(self._event_end, looked)) >= 0:
            end += len(self._event_end)
            event = bytes(self._held[begin:end])
            yield event
            if not event.startswith(b":"):  # a comment is no event
                yield from self._after_event(event)
            begin = looked = end
        del self._held[:begin]

    def _after_event(self, event: bytes = b"") -> Iterator[Act]:
        if self._fault.kind == "slow":
            yield Pause(self._fault.seconds)
            return
        self._left -= 1
        if self._left or self._done:
            return
        if self._fault.kind == "repeat":
            self._done = True
            yield event
        else:
            yield from self._strike()
