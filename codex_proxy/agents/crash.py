"""A child that is gone: what to tell the person at the client."""

from __future__ import annotations

import re
import signal

from codex_proxy.agents.base import Ended
from codex_proxy.agents.failures import cleaned
from codex_proxy.core.faults import Failure, FaultKind

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
LONGEST_TAIL = 300
"""Characters of stderr that go into a message: one line of a person's screen or two."""


def failure_from_crash(ended: Ended) -> Failure:
    """Why a child ended before its turn did: its exit, and the last line it said on stderr."""
    if ended.signal is not None:
        how = f"was ended by {_signal_name(ended.signal)}"
    elif ended.code is not None:
        how = f"exited with status {ended.code}"
    else:
        how = "closed its output"
    lines = [line.strip() for line in _ANSI.sub("", ended.stderr_tail).splitlines() if line.strip()]
    said = cleaned(lines[-1])[:LONGEST_TAIL] if lines else ""
    message = f"The agent {how} before it finished the answer." + (f" It said: {said}" if said else "")
    return Failure(kind=FaultKind.AGENT_CRASHED, message=message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
