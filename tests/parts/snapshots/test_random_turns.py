"""Turns of sessions with random changes of files: their trees are the folder, bit by bit."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest

from codex_proxy.parts.snapshots.forking import write_tree
from codex_proxy.parts.snapshots.handlers import KEEPER
from tests.parts.snapshots.random_files import change, files_in
from tests.parts.snapshots.working import Worker, snapshot_proxy

TURNS = 8


@pytest.mark.sampled(every=125)
@pytest.mark.parametrize("seed", range(125))
async def test_the_trees_of_turns_are_the_folder_bit_by_bit(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker, keeper = Worker(client, folder), client.proxy.app[KEEPER]
        states, turns = [files_in(folder)], list[str]()
        for _ in range(TURNS):
            turns.append(await worker.turn(partial(change, os.fsencode(folder), choose)))
            states.append(files_in(folder))
        for place, turn in enumerate(turns):
            files = await keeper.files("local", turn)
            assert files is not None
            for when, tree in enumerate((files.before, files.after)):
                copy = tmp_path / f"{turn}-{when}"
                copy.mkdir()
                write_tree(keeper.snapshots_of(files.place), tree, str(copy))
                assert files_in(copy) == states[place + when]
        for place in reversed(range(TURNS)):
            assert (await worker.revert(turns[place])).status == 200
            assert files_in(folder) == states[place]
