"""The fake agent ends with its input, wherever that ends; what goes on without input does so for a bounded time."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.fake.app_child import AppChild
from tests.fake.child import ROOT, Child
from tests.fake.proto_child import proto
from tests.waiting import PATIENCE


@pytest.mark.parametrize("sent", [b"", b'{"jsonrpc":"2.0","id":1,"meth'], ids=["at once", "within a line"])
@pytest.mark.parametrize("mode", ["app-server", "acp", "claude"])
def test_the_agent_ends_with_its_input(mode: str, sent: bytes) -> None:
    with Child(mode) as child:
        assert child.process.stdin is not None
        child.process.stdin.write(sent)
        child.close_stdin()
        assert child.exit_status() == (1 if mode == "claude" and sent else 0)  # it ends at an invalid line


@pytest.mark.parametrize("marker", ["count n=1000000", "text hold=1", "approval", "text misbehave=hang"])
def test_the_agent_ends_with_its_input_in_the_middle_of_a_turn(marker: str) -> None:
    with AppChild() as child:
        child.start_turn(child.start_thread(), f"[[fake:{marker}]]")
        child.read_until(lambda message: message.get("method") == "turn/started")
        child.close_stdin()
        child.read_rest()
        assert child.exit_status() == 0


def test_a_last_line_without_its_end_is_a_line() -> None:
    with proto() as child:
        assert child.process.stdin is not None
        child.process.stdin.write(b'{"id":"9","op":{"type":"shutdown"}}')
        child.close_stdin()
        assert b"shutdown_complete" in child.read_rest()
        assert child.exit_status() == 0


@pytest.mark.parametrize(
    ("mode", "fault"),
    [
        ("proto", ""),
        pytest.param("proto", "wait at=0 until=/no/such/file", marks=pytest.mark.exhaustive),
        pytest.param("app-server", "ignore_sigterm", marks=pytest.mark.exhaustive),
        pytest.param("acp", "ignore_sigterm", marks=pytest.mark.exhaustive),
        pytest.param("claude", "ignore_sigterm", marks=pytest.mark.exhaustive),
    ],
)
def test_an_agent_that_outlives_its_input_does_not_live_for_ever(mode: str, fault: str) -> None:
    shorter = "import sys; from fake_proto import faults, loop; faults.LIFE_S = loop.LIFE_S = 1; "
    child = subprocess.run(
        [sys.executable, "-c", shorter + "from fake_proto.__main__ import main; main(sys.argv[1:])", mode],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        env={"FAKE_CODEX_MISBEHAVE": fault},
        timeout=PATIENCE,
    )
    assert child.returncode == -signal.SIGALRM
