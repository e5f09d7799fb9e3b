"""Random histories of the store in PostgreSQL: it always says what a few dictionaries say."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from codex_proxy.parts.machines.postgresql import removal
from codex_proxy.parts.machines.postgresql.store import PostgresStore
from tests.postgres import PostgresServer, empty
from tests.store.stored import Hands
from tests.store.test_model import SETTINGS, Machine, StoreMachine
from tests.store.test_records_model import RecordsMachine

EXAMPLES = pytest.mark.parametrize("examples", [2, pytest.param(40, marks=pytest.mark.exhaustive)])


def run_machine(machine: type[Machine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(SETTINGS, max_examples=examples, stateful_step_count=20),
    )


@EXAMPLES
def test_the_store_in_postgresql_against_its_model(postgres_server: PostgresServer, examples: int) -> None:
    class PostgresMachine(StoreMachine):
        engines = (removal,)

        def open(self) -> None:
            self.runner.run(empty(postgres_server.url))
            self.store = self.runner.run(PostgresStore.open(postgres_server.url, clock=Hands()))

        def sizes(self, owner: str, id: str) -> tuple[int, int]:
            assert isinstance(self.store, PostgresStore)
            sql = "SELECT items, bytes FROM codex_proxy.conversations WHERE owner = $1 AND id = $2"
            (row,) = self.runner.run(self.store._database.read(sql, owner, id))
            return row["items"], row["bytes"]

    run_machine(PostgresMachine, examples)


@EXAMPLES
def test_records_in_postgresql_against_their_model(postgres_server: PostgresServer, examples: int) -> None:
    class PostgresMachine(RecordsMachine):
        engines = (removal,)

        def open(self) -> None:
            self.runner.run(empty(postgres_server.url))
            self.store = self.runner.run(PostgresStore.open(postgres_server.url, clock=Hands()))

    run_machine(PostgresMachine, examples)
