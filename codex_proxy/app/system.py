"""The computer's clock and its random values, which other layers get as arguments."""

from __future__ import annotations

import os
import time


class SystemClock:
    """Monotonic seconds, and seconds since 1970."""

    monotonic = staticmethod(time.monotonic)
    epoch = staticmethod(time.time)


class RandomIds:
    """Ids that cannot be guessed."""

    def new(self, prefix: str) -> str:
        return prefix + os.urandom(16).hex()
