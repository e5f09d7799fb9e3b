"""When a pool may start its next process, after some have failed: at once, then after pauses that grow.

Decides purely, from when processes failed and how long they had lived. A start that fails and a process that ends
unasked and idle count alike. One that ends at work on a turn counts for less: it may be that turn's doing, and one
client's prompts must not make everybody wait. It does not know what starts a process or why one ended.
"""

import msgspec

# A process that could not stay up for a second will not do so in the next one; each try costs 0.1 s of CPU.
FIRST_PAUSE = 1.0
# What is mended (a sign-in, a disk, a binary that was being replaced) is found out within this time.
MAX_PAUSE = 30.0
# Agents that fail by their own doing fail within their first seconds; later it was a turn, or somebody's signal.
STEADY_SECONDS = 10.0
# A client of OpenAI's SDK sends a turn that kills the agent three times in a row by itself.
LOOP = 4


class Restarts(msgspec.Struct, frozen=True):
    """How many processes in a row have failed, when the last one did, and how many were at work on no turn."""

    failures: int = 0
    last: float = 0.0
    idle: int = 0

    def failed(self, now: float, lived: float = 0.0, *, at_work: bool = False) -> "Restarts":
        """After one more failure, of a process that was ready for `lived` seconds. A steady one is the first.

        `at_work`: it had a turn.
        """
        before = Restarts() if is_steady(lived) else self
        return Restarts(before.failures + 1, now, before.idle + (not at_work))

    def served(self, born: float) -> "Restarts":
        """After a turn that a process has seen to its end; `born` says when that one was started."""
        return Restarts() if born >= self.last else self

    def pause(self, now: float) -> float:
        """Seconds until the next start: none after the first failure, then more and more, up to a limit. It grows
        with failures that were no turn's; for the others the first pause is enough."""
        if self.failures < 2:
            return 0.0
        pause = min(FIRST_PAUSE * 2.0 ** min(max(self.idle, 2) - 2, 16), MAX_PAUSE)
        return max(0.0, self.last + pause - now)

    @property
    def looping(self) -> bool:
        """Whether so many have failed in a row that a turn would most likely fail too."""
        return self.failures >= LOOP


def is_steady(lived: float) -> bool:
    """Whether a process that has been ready for so many seconds does not fail by its own doing any more."""
    return lived >= STEADY_SECONDS
