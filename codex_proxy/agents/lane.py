"""Where a run meets a child: a lane carries one turn's bytes, whoever else uses the same process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from codex_proxy.agents.base import Ended
from codex_proxy.core.faults import Failure, FaultKind


class LaneReader(Protocol):
    """Who hears from a lane. Called synchronously on the event loop."""

    def received(self, messages: Sequence[Any], size: int) -> None:
        """What the child said, as the dialect reads it; `size` in bytes."""
        ...

    def ended(self, ended: Ended) -> None:
        """The child is gone."""
        ...

    def fail(self, failure: Failure) -> None:
        """What the child says is no longer to be trusted."""
        ...


class Lane(Protocol):
    """One turn's end of a child."""

    @property
    def alone(self) -> bool:
        """The child serves nobody else: it may be made to wait, and ended with the turn."""
        ...

    def send(self, writes: bytes) -> None: ...

    def close_stdin(self) -> None:
        """Ends the child's stdin behind everything sent. Raises `RuntimeError` where the child serves others too."""
        ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def rest(self, resting: bool) -> None:
        """Whether the lane is only kept, so that its process counts as idle without it."""
        ...

    async def release(self, *, settled: bool) -> None:
        """The run is done with it. Not `settled`: the child did not say that it is; do not use it again."""
        ...


def broken_protocol(reason: str) -> Failure:
    """The failure of a turn whose child stopped speaking its protocol."""
    return Failure(
        kind=FaultKind.AGENT_PROTOCOL,
        message=f"The agent broke its own protocol: {reason}. Try again; if it stays, update the agent.",
    )
