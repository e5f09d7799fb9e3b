"""What chooses a behaviour: the environment, and the marker in the prompt, which wins."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fake.app_child import AppChild, function_calls
from tests.fake.child import ROOT, Child
from tests.fake.proto_child import ask, is_over, proto, texts, user_input
from tests.waiting import PATIENCE


def test_the_version_can_be_asked_without_a_conversation() -> None:
    command = [sys.executable, "-m", "fake_proto", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
    assert (done.stdout, done.returncode) == ("codex-cli 0.0.0-fake\n", 0)


def test_a_call_without_a_subcommand_says_how_to_call() -> None:
    command = [sys.executable, "-m", "fake_proto"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_the_environment_names_the_scenario_of_a_prompt_without_a_marker() -> None:
    with proto(MODE="length") as child:
        assert ask(child, "hello")[-1]["finish_reason"] == "length"


def test_a_marker_in_the_prompt_chooses_the_scenario() -> None:
    with proto(MODE="length") as child:
        assert "finish_reason" not in ask(child, "[[fake:text]] hello")[-1]


def test_one_child_serves_one_scenario_after_the_other() -> None:
    with proto() as child:
        first = ask(child, "[[fake:reasoning]]", "1")
        second = ask(child, "[[fake:error_500]]", "2")
    assert "agent_reasoning" in {m["type"] for m in first}
    assert "error" in {m["type"] for m in second}


def test_the_environment_overrides_a_stop_and_nothing_else() -> None:
    with proto(FINISH_REASON="someday") as child:
        assert ask(child, "[[fake:text]]", "1")[-1]["finish_reason"] == "someday"
        assert ask(child, "[[fake:tool_calls]]", "2")[-1]["finish_reason"] == "tool_calls"
        assert ask(child, "[[fake:length]]", "3")[-1]["finish_reason"] == "length"


def test_usage_is_that_of_the_environment_and_of_the_marker_before_it() -> None:
    with proto(USAGE_INPUT="7", USAGE_OUTPUT="3", USAGE_CACHED="0", USAGE_REASONING="1") as child:
        messages = ask(child, "[[fake:text in=9]]")
    last = [m for m in messages if m["type"] == "token_count"][-1]["info"]["last_token_usage"]
    assert list(last.values()) == [9, 0, 3, 1, 12]


def test_the_marker_sets_text_number_and_size() -> None:
    with proto() as child:
        said = ask(child, '[[fake:text say="two words"]]', "1")
        counted = ask(child, "[[fake:count n=3 size=4]]", "2")
    assert texts(said, "agent_message_delta", "delta") == ["two", " words"]
    assert texts(counted, "agent_message_delta", "delta") == ["..0 ", "..1 ", "..2 "]


def test_calls_use_the_name_of_the_marker_or_the_first_tool_that_was_offered() -> None:
    tool = {"type": "function", "description": "", "inputSchema": {}}
    tools = [{**tool, "name": "first"}, {**tool, "name": "second"}]
    for marker, name in (("[[fake:tool_call]]", "first"), ("[[fake:tool_call name=second]]", "second")):
        with AppChild() as child:
            child.start_turn(child.start_thread(dynamicTools=tools), marker)
            seen = child.read_until(lambda m: m.get("method") == "rawResponse/completed")
        assert [call["name"] for call in function_calls(seen)] == [name]


def test_the_number_and_the_arguments_of_calls_can_be_given() -> None:
    with proto() as child:
        messages = ask(child, """[[fake:tool_calls_sequential calls=3 args='{"a":1}']]""")
    calls = next(m for m in messages if m.get("tool_calls"))["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ['{"a":1}'] * 3


def test_code_and_message_of_an_error_can_be_given() -> None:
    with AppChild() as child:
        error = child.play("""[[fake:error_500 code=string_above_max_length message='too long']]""")[-1]
    assert '"code": "string_above_max_length"' in error["params"]["turn"]["error"]["message"]


def test_deltas_keep_the_pace_they_are_given() -> None:
    with proto() as child:
        child.read_line()
        begun = time.monotonic()
        ask(child, "[[fake:text n=5 delay=20 first=50]]")
    assert time.monotonic() - begun >= 0.15


def test_a_held_turn_goes_on_when_the_release_file_appears(tmp_path: Path) -> None:
    release = tmp_path / "release"
    with Child("proto", env={"STREAM_RELEASE_FILE": str(release)}) as child:
        child.send(user_input("[[fake:text hold=1]]"))
        child.read_until(lambda event: event["msg"]["type"] == "agent_message_delta")
        assert child.read_line(wait_s=0.1) is None
        release.touch()
        assert child.read_until(is_over)[-1]["msg"]["type"] == "task_complete"


def test_a_held_turn_ends_when_it_is_interrupted(tmp_path: Path) -> None:
    env = {"STREAM_RELEASE_FILE": str(tmp_path / "never"), "FAKE_CODEX_HOLD": "1"}
    with Child("proto", env=env) as child:
        child.send(user_input("hello"))
        child.read_until(lambda event: event["msg"]["type"] == "agent_message_delta")
        child.send({"id": "2", "op": {"type": "interrupt"}})
        assert child.read_until(is_over)[-1]["msg"]["type"] == "turn_aborted"


def test_a_turn_that_is_not_held_ignores_the_release_file(tmp_path: Path) -> None:
    with Child("proto", env={"STREAM_RELEASE_FILE": str(tmp_path / "never")}) as child:
        assert ask(child, "[[fake:text]]")[-1]["type"] == "task_complete"


@pytest.mark.parametrize("dialect", ["proto", "app-server"])
def test_a_child_imports_only_what_it_needs_to_start_fast(dialect: str) -> None:
    program = (
        "import sys; from fake_proto import __main__ as m; import fake_proto.proto, fake_proto.app_server;"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-S", "-E", "-c", program, dialect]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
    heavy = {"asyncio", "typing", "dataclasses", "argparse", "inspect", "logging", "subprocess", "pathlib"}
    assert heavy & set(done.stdout.split()) == set()


def test_the_models_come_from_the_catalog_file_that_is_configured(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog.json"
    catalog.write_text('{"models": [{"slug": "only-one"}]}')
    with Child("app-server", "-c", f'model_catalog_json="{catalog}"') as child:
        child.send(
            {"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "t"}}},
            {"id": 2, "method": "model/list", "params": {}},
        )
        answer = child.read_until(lambda m: m.get("id") == 2)[-1]
    assert [model["id"] for model in answer["result"]["data"]] == ["only-one"]
