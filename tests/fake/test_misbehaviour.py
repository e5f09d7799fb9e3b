"""Misbehaviour on purpose does what its name says, and nothing else."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.fake.app_child import AppChild, deltas, is_completed, methods
from tests.fake.child import Child
from tests.fake.proto_child import ask, is_over, proto, texts, user_input
from tests.waiting import eventually

ANSWER_TEXT = "Hello from the deterministic fake agent."


def to_its_end(child: Child) -> list[bytes]:
    """The lines up to the one that ends a turn."""
    lines: list[bytes] = []
    while not lines or b"task_complete" not in lines[-1]:
        line = child.read_line()
        assert line
        lines.append(line)
    return lines


def well_behaved() -> list[bytes]:
    with proto() as child:
        child.send(user_input("[[fake:text]]"))
        return to_its_end(child)


def test_split_lines_come_in_several_reads_and_are_the_same_lines() -> None:
    with proto(MISBEHAVE="split") as child:
        chunks: list[bytes] = []
        child.send(user_input("[[fake:text]]"))
        while b"task_complete" not in b"".join(chunks) or not chunks[-1].endswith(b"\n"):
            chunk = child.read_chunk()
            assert chunk
            chunks.append(chunk)
    assert b"".join(chunks).split(b"\n")[:-1] == well_behaved()
    assert sum(not chunk.endswith(b"\n") for chunk in chunks) > 3


def test_joined_lines_come_in_one_write() -> None:
    with proto() as child:
        child.read_line()
        child.send(user_input("[[fake:text misbehave=joined]]"))
        chunk = child.read_chunk()
    assert chunk is not None
    assert chunk.split(b"\n")[:-1] == well_behaved()[1:]


@pytest.mark.parametrize("name", ["garbage", "bad_utf8"])
def test_a_bad_line_comes_in_between(name: str) -> None:
    with proto() as child:
        child.send(user_input(f"[[fake:text misbehave={name} at=3]]"))
        lines = to_its_end(child)
    bad = lines.pop(4)
    assert lines == well_behaved()
    with pytest.raises(ValueError, match=r"utf-8|Expecting"):
        json.loads(bad.decode())


def items(marker: str) -> list[tuple[str, str]]:
    """What an app-server says of items: that they begin or end, and their ids."""
    with AppChild() as child:
        messages = child.play(f"[[fake:{marker}]]")
    told = [message for message in messages if message.get("method", "").startswith("item/")]
    return [
        (message["method"], message["params"]["item"]["id"])
        for message in told
        if "item" in message["params"] and message["params"]["item"]["type"] != "userMessage"
    ]


def test_a_step_is_played_so_often() -> None:
    assert len(items("multi_message times=3")) == 3 * len(items("multi_message"))


def test_unended_items_begin_and_do_not_end() -> None:
    assert {method for method, _ in items("multi_message misbehave=unended")} == {"item/started"}


def test_all_items_of_a_kind_have_the_same_id() -> None:
    assert len({id for _, id in items("multi_message times=3")}) == 6
    assert len({id for _, id in items("multi_message times=3 misbehave=same_ids")}) == 1


def test_a_crash_comes_behind_the_line_and_with_the_code_that_were_asked_for() -> None:
    with proto() as child:
        child.read_line()
        child.send(user_input("[[fake:text misbehave=crash at=4 code=7]]"))
        assert child.read_rest().count(b"\n") == 4
        assert child.exit_status() == 7


def test_a_crash_of_the_whole_process_counts_its_lines_from_the_first() -> None:
    with proto(MISBEHAVE="crash at=1 code=3") as child:
        assert child.read_rest().count(b"\n") == 1
        assert child.exit_status() == 3


def test_a_child_may_end_well_without_ending_its_turn() -> None:
    with proto() as child:
        child.read_line()
        child.send(user_input("[[fake:text misbehave=eof_without_end at=5]]"))
        assert child.read_rest().count(b"\n") == 5
        assert child.exit_status() == 0


def test_a_closed_stdout_leaves_the_child_alive() -> None:
    with proto() as child:
        child.send(user_input("[[fake:text misbehave=close_stdout at=2]]"))
        assert child.read_rest().count(b"\n") == 3
        assert child.process.poll() is None


def test_a_hanging_turn_can_still_be_interrupted() -> None:
    with proto() as child:
        child.read_line()
        child.send(user_input("[[fake:text misbehave=hang at=4]]"))
        lines = [child.read_line() for _ in range(4)]
        assert all(lines)
        assert child.read_line(wait_s=0.1) is None
        child.send({"id": "2", "op": {"type": "interrupt"}})
        assert child.read_until(is_over)[-1]["msg"]["type"] == "turn_aborted"
        assert ask(child, "[[fake:text]]", "3")[-1]["type"] == "task_complete"


@pytest.mark.parametrize("name", ["hang", "deaf"])
async def test_a_file_says_when_a_child_has_fallen_silent(name: str, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    with proto(SILENT_FILE=str(silent)) as child:
        ask(child, "[[fake:text]]")
        assert not silent.exists()
        child.send(user_input(f"[[fake:text misbehave={name} at=2]]"))
        await eventually(lambda: silent.exists() and silent.read_text().endswith("\n"))
        assert silent.read_text() == f"{child.process.pid}\n"
        assert [bool(child.read_line()) for _ in range(2)] == [True, True]


def test_a_hanging_thread_leaves_the_others_alone() -> None:
    with AppChild() as child:
        stuck = child.start_thread()
        turn = child.start_turn(stuck, "[[fake:text misbehave=hang at=6]]")
        assert "".join(deltas(child.play("[[fake:text]]"))) == ANSWER_TEXT
        answer = child.call("turn/interrupt", {"threadId": stuck, "turnId": turn})
        assert answer["result"] == {}
        assert child.read_until(is_completed)[-1]["params"]["turn"]["status"] == "interrupted"


def test_a_child_that_reads_nothing_ignores_an_interrupt() -> None:
    with proto() as child:
        child.read_line()
        child.send(user_input("[[fake:text misbehave=deaf at=2]]"))
        assert [bool(child.read_line()) for _ in range(2)] == [True, True]
        child.send({"id": "2", "op": {"type": "interrupt"}})
        assert child.read_line(wait_s=0.2) is None


@pytest.mark.parametrize("dialect", ["proto", "app-server"])
def test_a_child_that_hangs_at_start_never_says_a_line(dialect: str) -> None:
    with Child(dialect, env={"FAKE_CODEX_MISBEHAVE": "hang_start"}) as child:
        child.send({"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "t"}}})
        assert child.read_line(wait_s=0.3) is None
        assert child.process.poll() is None


def test_sigterm_ends_a_child_unless_it_ignores_it() -> None:
    with proto() as child:
        child.read_line()
        child.process.terminate()
        assert child.exit_status() == -signal.SIGTERM
    with proto(MISBEHAVE="ignore_sigterm") as child:
        child.read_line()
        child.process.terminate()
        assert ask(child, "[[fake:text]]")[-1]["type"] == "task_complete"


def pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


@pytest.mark.parametrize(("name", "own_session"), [("grandchild", True), ("plain_grandchild", False)])
def test_a_grandchild_holds_stdout_when_the_child_is_gone(
    name: str, own_session: bool, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pids"
    with proto(PID_FILE=str(pid_file)) as child:
        child.read_line()
        ask(child, f"[[fake:text misbehave={name}]]")
        own, grandchild = pids(pid_file)
        try:
            assert own == child.process.pid
            assert (os.getsid(grandchild) != os.getsid(own)) is own_session
            child.process.kill()
            child.exit_status()
            assert child.read_line(wait_s=0.1) is None, "stdout is still held"
        finally:
            os.kill(grandchild, signal.SIGKILL)
        assert child.read_line() == b""


@pytest.mark.exhaustive
def test_a_big_line_is_as_big_as_asked_for() -> None:
    with proto() as child:
        messages = ask(child, "[[fake:text misbehave=big_line]]")
        smaller = ask(child, "[[fake:text misbehave=big_line bytes=70000]]", "2")
    assert len(texts(messages, "exec_command_end", "stdout")[0]) == 10_000_000
    assert len(texts(smaller, "exec_command_end", "stdout")[0]) == 70_000
    assert "".join(texts(messages, "agent_message_delta", "delta")) == ANSWER_TEXT


@pytest.mark.exhaustive
def test_a_flood_is_a_hundred_thousand_deltas() -> None:
    with proto() as child:
        messages = ask(child, "[[fake:text misbehave=flood]]")
    assert len(texts(messages, "agent_message_delta", "delta")) == 100_000


def test_a_flood_of_stderr_does_not_touch_stdout() -> None:
    with proto() as child:
        assert (
            "".join(texts(ask(child, "[[fake:text misbehave=stderr_flood]]"), "agent_message", "message"))
            == ANSWER_TEXT
        )


def test_duplicates_come_under_both_names() -> None:
    with proto() as child:
        messages = ask(child, "[[fake:text misbehave=duplicate]]")
    plain = texts(messages, "agent_message_delta", "delta")
    assert plain == texts(messages, "codex/event/agent_message_delta", "delta")
    assert "".join(plain) == ANSWER_TEXT


def test_prefixed_events_carry_the_old_prefix_only() -> None:
    with proto() as child:
        child.read_line()
        child.send(user_input("[[fake:text misbehave=prefixed]]"))
        events = child.read_until(lambda e: e["msg"]["type"] == "codex/event/task_complete")
    assert all(event["msg"]["type"].startswith("codex/event/") for event in events)


def test_the_legacy_shape_has_type_and_fields_at_the_top() -> None:
    with proto(MISBEHAVE="legacy_shape") as child:
        child.send(user_input("[[fake:text]]"))
        lines = child.read_until(lambda m: m["type"] == "task_complete")
    assert "".join(line["delta"] for line in lines if line["type"] == "agent_message_delta") == ANSWER_TEXT
    assert lines[0]["type"] == "session_configured"


def test_unknown_events_come_between_the_known_ones() -> None:
    with proto() as child:
        child.send(user_input("[[fake:text misbehave=unknown_events]]"))
        kinds = [e["msg"]["type"] for e in child.read_until(is_over)]
    with AppChild() as app:
        seen = methods(app.play("[[fake:text misbehave=unknown_events]]"))
    assert "event_of_a_later_version" in kinds
    assert "thread/laterVersion/changed" in seen


def test_a_torn_line_ends_inside_a_character_and_the_child_with_it() -> None:
    with proto() as child:
        child.read_line()
        child.send(user_input("[[fake:text misbehave=torn at=4]]"))
        *whole, torn = child.read_rest().split(b"\n")
        assert child.exit_status() == 1
    assert len(whole) == 4
    with pytest.raises(UnicodeDecodeError, match="unexpected end of data"):
        torn.decode()


def test_an_endless_line_is_as_long_as_asked_for_and_the_turn_goes_on_behind_it() -> None:
    with proto() as child:
        child.read_line()
        child.send(user_input("[[fake:text misbehave=endless at=4 bytes=3000000]]"))
        lines = to_its_end(child)
    assert 2_000_000 < len(lines.pop(4)) < 3_000_100
    assert lines == well_behaved()[1:]


def test_repeated_lines_are_the_same_to_the_byte() -> None:
    with proto() as child:
        child.read_line()
        child.send(user_input("[[fake:text misbehave=repeat]]"))
        lines = [child.read_line() for _ in range(2 * len(well_behaved()[1:]))]
    assert lines[::2] == lines[1::2] == well_behaved()[1:]


def test_wrong_types_leave_names_and_ids() -> None:
    with AppChild() as child:
        messages = child.play("[[fake:text misbehave=wrong_types]]")
    mine = [each for each in messages if each.get("method") == "item/agentMessage/delta"]
    right, wrong = mine[:2]
    assert set(right["params"]) == set(wrong["params"])
    assert right["params"]["threadId"] == wrong["params"]["threadId"]
    assert isinstance(right["params"]["delta"], str)
    assert isinstance(wrong["params"]["delta"], int)


def test_the_fault_strangers_sends_events_of_turns_that_do_not_exist() -> None:
    with proto() as child:
        messages = ask(child, "[[fake:text misbehave=strangers]]")
    with AppChild() as app:
        said = deltas(app.play("[[fake:text misbehave=strangers]]"))
    assert "stranger" in texts(messages, "agent_message_delta", "delta")
    assert "stranger" in said


def test_faults_can_be_combined() -> None:
    with proto() as child:
        child.read_line()
        child.send(user_input("[[fake:text misbehave=duplicate,crash at=6 code=5]]"))
        lines = child.read_rest().split(b"\n")[:-1]
        assert child.exit_status() == 5
    assert len(lines) == 6
    assert [b"codex/event/" in line for line in lines] == [False, True] * 3


def test_a_fault_of_a_marker_ends_with_its_turn() -> None:
    with proto() as child:
        ask(child, "[[fake:text misbehave=duplicate]]", "1")
        child.read_line()
        assert not texts(ask(child, "[[fake:text]]", "2"), "codex/event/agent_message_delta", "delta")


def test_the_child_notes_its_own_pid(tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    with AppChild(PID_FILE=str(pid_file)) as child:
        assert pids(pid_file) == [child.process.pid]
