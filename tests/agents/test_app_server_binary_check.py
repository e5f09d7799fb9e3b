"""A binary is asked once what it speaks, and the answer is kept for it until it changes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import structlog

from codex_proxy.agents.codex.process_config import COMMON_SWITCHES, PLAIN_SWITCHES
from codex_proxy.agents.codex_app_server.binary_check import (
    KEPT_SECONDS,
    BinaryCheck,
    check_binary,
    renew_check,
)
from codex_proxy.core.faults import Fault
from tests.codex_schemas import NEWEST, ONE_CALL_AT_A_TIME, schema_file, speaks
from tests.waiting import eventually

ENVIRONMENT = {"PATH": os.environ["PATH"]}

REFUSES = """
for argument; do case "$argument" in
  {key}=*) echo "Error: {words}" >&2; exit 1;;
esac; done
"""


def refuses(key: str, words: str) -> str:
    """Lines of a stand-in that takes no argument `key=...`."""
    return REFUSES.format(key=key, words=words.replace("`", "\\`"))


class Binary:
    """A `codex` of shell that speaks as a release does, and writes down what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "codex"
        self.schema = folder / "schema.json"
        self.state = folder / "state"
        self.state.mkdir()
        self._asked = folder / "asked"
        self.becomes(NEWEST)

    def becomes(self, release: str, more: str = "") -> None:
        """It speaks as that release does from now on; `more` are lines that come first."""
        shutil.copy(schema_file(release), self.schema)
        text = f'#!/bin/sh\necho "$1 $2" >> "{self._asked}"\n{more}\n{speaks(self.schema)}'
        self.program.write_text(text)
        self.program.chmod(0o755)

    def take_questions(self) -> list[str]:
        """Returns the command lines since the last call."""
        lines = self._asked.read_text().splitlines() if self._asked.exists() else []
        self._asked.unlink(missing_ok=True)
        return lines

    async def check(self) -> BinaryCheck:
        return await check_binary(str(self.program), str(self.state), ENVIRONMENT)

    async def renew(self, *, later: float) -> None:
        """Renews the check so many seconds after it was kept."""
        [kept] = self.state.glob("codex-checks/*.json")
        now = kept.stat().st_mtime + later
        await renew_check(str(self.program), str(self.state), ENVIRONMENT, now)


@pytest.fixture
def binary(tmp_path: Path) -> Binary:
    return Binary(tmp_path)


async def test_a_binary_is_asked_once_and_then_its_answer_is_read(binary: Binary) -> None:
    first = await binary.check()
    assert first == BinaryCheck()
    assert binary.take_questions() == ["app-server generate-json-schema", "app-server --strict-config"]
    assert await binary.check() == first
    assert binary.take_questions() == []
    assert [each.name for each in binary.state.iterdir()] == ["codex-checks"], "its homes are gone"


async def test_another_binary_in_its_place_is_asked_anew(binary: Binary) -> None:
    await binary.check()
    binary.becomes(ONE_CALL_AT_A_TIME, more="# it is longer, too")
    assert (await binary.check()).contract.missing_features.keys() == {"parallel_calls", "imported_turns"}


async def test_a_binary_that_is_replaced_while_it_is_asked_is_asked_anew(binary: Binary) -> None:
    binary.becomes(NEWEST, more='echo "# of another release" >> "$0"')
    await binary.check()
    assert binary.take_questions()
    await binary.check()
    assert binary.take_questions()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("damage", [b"", b"{", b"null", b'{"binary": ["", 1, 2]}'])
async def test_a_stored_answer_that_cannot_be_read_is_asked_for_anew(binary: Binary, damage: bytes) -> None:
    first = await binary.check()
    [kept] = binary.state.glob("codex-checks/*.json")
    kept.write_bytes(damage)
    assert await binary.check() == first
    assert kept.read_bytes() != damage


async def test_an_answer_to_another_contract_is_asked_for_anew(binary: Binary) -> None:
    await binary.check()
    [kept] = binary.state.glob("codex-checks/*.json")
    body: dict[str, Any] = json.loads(kept.read_text())
    kept.write_text(json.dumps(body | {"contract": "of an earlier version of the proxy"}))
    assert len(binary.take_questions()) == 2
    await binary.check()
    assert len(binary.take_questions()) == 2


async def test_behind_a_start_an_answer_of_a_day_is_renewed_and_a_younger_one_is_not(binary: Binary) -> None:
    await binary.check()
    assert len(binary.take_questions()) == 2
    await binary.renew(later=KEPT_SECONDS - 10)
    assert binary.take_questions() == []
    await binary.renew(later=KEPT_SECONDS + 10)
    assert len(binary.take_questions()) == 2


async def test_a_script_whose_binary_has_changed_is_found_out_and_holds_from_the_next_start_on(
    binary: Binary,
) -> None:
    before = await binary.check()
    shutil.copy(schema_file(ONE_CALL_AT_A_TIME), binary.schema)  # what stands before it is the same
    assert await binary.check() == before
    with structlog.testing.capture_logs() as lines:
        await binary.renew(later=KEPT_SECONDS + 10)
    assert [line["event"] for line in lines] == ["codex_changed"]
    assert (await binary.check()).contract.missing_features.keys() == {"parallel_calls", "imported_turns"}


async def test_a_renewal_that_fails_is_logged_and_the_stored_answer_stays(binary: Binary) -> None:
    before = await binary.check()
    binary.schema.write_text("[]")
    with structlog.testing.capture_logs() as lines:
        await binary.renew(later=KEPT_SECONDS + 10)
    assert [line["event"] for line in lines] == ["codex_check_failed"]
    assert await binary.check() == before


async def test_switches_that_the_binary_does_not_know_are_found_one_after_the_other(binary: Binary) -> None:
    plan = refuses(
        "tools.update_plan.enabled", "unknown configuration field `tools.update_plan.enabled` in -c override"
    )
    agents = refuses("agents.enabled", "invalid type: boolean, expected struct\nin `agents`")
    binary.becomes(NEWEST, more=plan + agents)
    found = (await binary.check()).unknown_switches
    assert sorted(found) == ["agents.enabled", "tools.update_plan.enabled"]
    assert binary.take_questions() == ["app-server generate-json-schema", *["app-server --strict-config"] * 3]


async def test_a_refusal_that_names_no_switch_says_nothing_of_them(binary: Binary) -> None:
    binary.becomes(NEWEST, more='[ "$2" = --strict-config ] && { echo "no such option" >&2; exit 2; }')
    assert (await binary.check()).unknown_switches == ()


async def test_a_binary_that_refuses_every_switch_is_not_asked_for_ever(binary: Binary) -> None:
    words = "unknown configuration field \\`'\"${argument%%=*}\"'\\`"
    lines = f"""for argument; do case "$argument" in *=*) printf 'Error: {words}\\n' "" >&2; exit 1;; esac; done"""
    binary.becomes(NEWEST, more=lines.replace("\\`", "`"))
    found = (await binary.check()).unknown_switches
    assert len(found) == len(COMMON_SWITCHES) + len(PLAIN_SWITCHES)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("exit 3", "exit code 3"),
        (
            "echo \"error: unrecognized subcommand 'generate-json-schema'\" >&2; exit 2",
            "unrecognized subcommand",
        ),
        ("exit 0", "wrote no codex_app_server_protocol.schemas.json"),
    ],
)
async def test_a_binary_that_cannot_say_which_protocol_it_supports_is_a_fault_that_quotes_it(
    binary: Binary, more: str, says: str
) -> None:
    binary.becomes(NEWEST, more=more)
    with pytest.raises(Fault, match=says):
        await binary.check()
    assert list(binary.state.iterdir()) == []


async def test_a_schema_of_another_shape_is_a_fault_that_says_so(binary: Binary) -> None:
    binary.schema.write_text("[]")
    with pytest.raises(Fault, match="a schema that this server cannot read"):
        await binary.check()


async def test_a_question_that_is_broken_off_leaves_no_folder(binary: Binary) -> None:
    binary.becomes(NEWEST, more="exec sleep 1000")
    asking = asyncio.create_task(binary.check())
    await eventually(lambda: any(binary.state.glob("*.temporary")))
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert list(binary.state.iterdir()) == []
