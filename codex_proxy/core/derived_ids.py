"""Ids that follow from the id of a response, so that whoever renders it again gives its items the same ones."""

from __future__ import annotations

from hashlib import blake2b


class DerivedIds:
    """The ids of one response's items: as unique and as hard to guess as the id that they are made from."""

    def __init__(self, id: str, run: str = "") -> None:
        """`run` tells several runs of one response apart, so that none has the ids of another."""
        self._seed = f"{id} {run} ".encode()
        self._count = 0

    def new(self, prefix: str) -> str:
        seed = b"%b%d" % (self._seed, self._count)
        self._count += 1
        return prefix + blake2b(seed, digest_size=16).hexdigest()
