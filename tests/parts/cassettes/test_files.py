"""What an agent does to files is recorded, and done again by a replay: in the folder as it was, and nowhere else."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from codex_proxy.agents.dialect import Decision
from codex_proxy.app.server import Server
from codex_proxy.core.events import ApprovalRequested, TurnEnded
from codex_proxy.core.faults import Failure
from codex_proxy.core.turn import Turn
from codex_proxy.parts.cassettes import folder_files
from codex_proxy.parts.cassettes.check import check_folder, compare, update
from codex_proxy.parts.cassettes.file_lines import Line, ReplyLine
from codex_proxy.parts.cassettes.folder_files import FolderError, RecordedFolders
from codex_proxy.parts.cassettes.format import read
from codex_proxy.parts.cassettes.player import PlayedDialect, PlayedTransport, WholeCalls
from codex_proxy.parts.cassettes.replay import Folder
from codex_proxy.parts.cassettes.settings import CassetteError
from codex_proxy.parts.cassettes.views import as_conversation
from tests.files.trees import Entry, Tree, changes_between, link, put, tree_at
from tests.parts.cassettes.talking import openai_client, running_server
from tests.waiting import PATIENCE

START: Tree = {
    b"a.py": Entry(b"one\ntwo\nthree\n"),
    b"run.sh": Entry(b"#!/bin/sh\n", 0o755),
    b"d/e": Entry(b"deep"),
    b"l": link(b"a.py"),
}


def marker(before: Tree, after: Tree) -> str:
    """Returns a prompt that makes the fake agent turn one tree into the other."""
    changes = changes_between(before, after)
    done: list[dict[str, Any]] = [{"path": os.fsdecode(each.path)} for each in changes if each.before]
    for change in changes:
        if change.after is not None:
            entry = after[change.path]
            text = entry.content.decode("utf-8", "surrogateescape")
            content = {"link": text} if entry.mode is None else {"text": text, "mode": entry.mode}
            done.append({"path": os.fsdecode(change.path)} | content)
    said = json.dumps(done).replace("'", "\\u0027")
    return f"[[fake:text files='{said}']]"


async def ask(server: Server, prompt: str, **options: Any) -> str:
    async with openai_client(server) as client:
        response = await client.responses.create(model="codex-5", input=prompt, **options)
        return str(response.output_text)


def files_in(folder: Path) -> dict[bytes, Entry]:
    return {path: each for path, each in tree_at(folder).items() if not path.endswith(b"/")}


class Place:
    """A folder in which turns are recorded, and one in which they are replayed."""

    def __init__(self, path: Path, start: Tree = START) -> None:
        self.path = path
        self.cassettes = path / "cassettes"
        self.folder = path / "work"
        self.start = start
        self.reset()

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        put(self.folder, self.start)

    def recording(self, **settings: Any) -> Any:
        given: dict[str, Any] = {
            "workdir": self.folder,
            "sandbox": "workspace-write",
            "cassettes": {"record": self.cassettes},
        }
        return running_server(self.path, **given | settings)

    def replaying(self, **settings: Any) -> Any:
        given: dict[str, Any] = {
            "workdir": self.folder,
            "sandbox": "workspace-write",
            "cassettes": {"replay": self.cassettes},
        }
        return running_server(self.path, **given | settings)

    async def record(self, *trees: Tree, **settings: Any) -> list[str]:
        """Records turns that change the folder from tree to tree. Returns their prompts."""
        prompts = [marker(before, after) for before, after in zip((self.start, *trees), trees, strict=False)]
        async with self.recording(**settings) as server:
            for prompt in prompts:
                await ask(server, prompt)
        return prompts

    def text(self) -> str:
        return "".join(file.read_text() for file in sorted(self.cassettes.glob("*.jsonl")))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


AFTER: Tree = {
    b"a.py": Entry(b"one\n2\nthree\n", 0o600),
    b"run.sh": Entry(b"#!/bin/sh\n"),
    b"d": Entry(b"\0\xff"),
    b"new/\xff": link(b"../a.py"),
    b"empty": Entry(b""),
}


async def test_a_replay_does_to_the_folder_what_the_agent_has_done(place: Place) -> None:
    (prompt,) = await place.record(AFTER)
    assert files_in(place.folder) == AFTER
    place.reset()
    async with place.replaying() as server:
        await ask(server, prompt)
        assert tree_at(place.folder) == AFTER


async def test_the_lines_of_a_cassette_say_what_was_changed(place: Place) -> None:
    await place.record(AFTER)
    lines = [json.loads(line) for line in place.text().splitlines()]
    found = {each["file"].get("path_text"): each["file"] for each in lines if "file" in each}
    assert lines[0]["cassette"] == 3
    assert found["a.py"]["patch"] == {"line": 2, "removed_text": "two\n", "added_text": "2\n"}
    assert (found["run.sh"]["before"]["mode"], found["run.sh"]["mode"]) == ("755", "644")
    assert "text" not in found["run.sh"]
    assert found["d"]["base64"] == "AP8="
    assert found["empty"]["text"] == ""
    assert found[None] == {"path_base64": "bmV3L/8=", "target_text": "../a.py"}
    assert set(found["d/e"]) == {"path_text", "before"}


async def test_a_turn_that_changes_nothing_is_recorded_as_before(place: Place) -> None:
    await place.record(START)
    assert json.loads(place.text().splitlines()[0])["cassette"] == 2
    assert '"file"' not in place.text()


async def test_turns_that_follow_each_other_are_replayed_one_after_the_other(place: Place) -> None:
    trees: list[Tree] = [AFTER, {}, START, {b"a.py": Entry(b"other")}]
    prompts = await place.record(*trees)
    place.reset()
    async with place.replaying() as server:
        for prompt, tree in zip(prompts, trees, strict=True):
            await ask(server, prompt)
            assert files_in(place.folder) == tree


async def test_a_streamed_replay_has_written_the_files_when_its_client_sees_the_end(place: Place) -> None:
    (prompt,) = await place.record(AFTER)
    place.reset()
    async with place.replaying() as server, openai_client(server) as client:
        stream = await client.chat.completions.create(
            model="codex-5", messages=[{"role": "user", "content": prompt}], stream=True
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].finish_reason:
                assert files_in(place.folder) == AFTER


@pytest.mark.parametrize("change", ["content", "mode", "gone", "taken", "link"])
async def test_a_folder_that_differs_is_an_error_that_names_the_paths(place: Place, change: str) -> None:
    (prompt,) = await place.record(AFTER)
    place.reset()
    shown = {"mode": "run.sh", "taken": "empty", "link": "d/e"}.get(change, "a.py")
    if change == "content":
        (place.folder / "a.py").write_bytes(b"mine\n")
    elif change == "mode":
        (place.folder / "run.sh").chmod(0o644)
    elif change == "gone":
        (place.folder / "a.py").unlink()
    elif change == "taken":
        (place.folder / "empty").write_bytes(b"mine")
    else:
        shutil.rmtree(place.folder / "d")
        (place.path / "else").mkdir()
        (place.path / "else" / "e").write_bytes(b"deep")
        (place.folder / "d").symlink_to(place.path / "else")
    there = tree_at(place.folder)
    async with place.replaying() as server:
        with pytest.raises(openai.ConflictError) as caught:
            await ask(server, prompt)
        assert caught.value.code == "cassette_files_differ"
        assert f"something else is at {shown}" in caught.value.message or shown in caught.value.message
        assert tree_at(place.folder) == there


async def test_what_does_not_matter_for_the_changes_may_differ(place: Place) -> None:
    (prompt,) = await place.record({**START, b"a.py": Entry(b"new\n")})
    place.reset()
    (place.folder / "run.sh").unlink()
    (place.folder / "a.py").chmod(0o664)
    (place.folder / "mine").write_bytes(b"mine")
    async with place.replaying() as server:
        await ask(server, prompt)
    assert files_in(place.folder)[b"a.py"] == Entry(b"new\n", 0o664)
    assert (place.folder / "mine").read_bytes() == b"mine"


async def test_a_turn_that_may_not_write_is_refused_and_writes_nothing(place: Place) -> None:
    (prompt,) = await place.record(AFTER)
    place.reset()
    async with place.replaying(sandbox="read-only") as server:
        with pytest.raises(openai.PermissionDeniedError, match="sandbox is read-only") as caught:
            await ask(server, prompt)
        assert caught.value.code == "cassette_files_not_allowed"
    assert tree_at(place.folder) == START


async def test_files_are_left_alone_if_the_settings_say_so(place: Place) -> None:
    (prompt,) = await place.record(AFTER)
    place.reset()
    off = {"replay": place.cassettes, "files": False}
    async with place.replaying(sandbox="read-only", cassettes=off) as server:
        assert await ask(server, prompt)
    assert tree_at(place.folder) == START
    shutil.rmtree(place.cassettes)
    await place.record(AFTER, cassettes={"record": place.cassettes, "files": False})
    assert '"file"' not in place.text()


async def test_the_files_of_the_server_itself_are_not_written_to(place: Place) -> None:
    (prompt,) = await place.record(AFTER)
    place.reset()
    async with place.replaying(sandbox="danger-full-access", state_dir=place.folder / "state") as server:
        with pytest.raises(openai.PermissionDeniedError, match="the state folder"):
            await ask(server, prompt)
    assert not (place.folder / "empty").exists()


async def test_a_secret_in_a_file_is_in_no_cassette(place: Place) -> None:
    secret = "sk-proj-planted0123456789abcdef"
    place.start = {b"a": Entry(f"1\nkey = {secret}\n2\n".encode())}
    place.reset()
    await place.record(
        {b"a": Entry(b"1\n2\n"), b"b": Entry(f"\0{secret}".encode()), b"c": Entry(secret.encode())}
    )
    assert "planted0123" not in place.text().split('"file"', 1)[1].split('"answer"')[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"path_text":"empty"', '"path_text":".git/hooks/pre-commit"'),
        ('"path_text":"empty"', '"path_text":"../outside"'),
        ('"path_text":"empty"', '"path_text":"/tmp/outside"'),
        ('"path_text":"empty"', '"path_base64":"LmNsYXVkZS9h"'),
        ('"target_text":"../a.py"', '"target_text":"../../outside"'),
        ('"mode":"644","text":""', '"mode":"4755","text":""'),
        ('"mode":"644","text":""', '"text":""'),
        ('"text":""', '"text":"","base64":""'),
        ('"base64":"AP8="', '"base64":"*"'),
        ('"base64":"AP8="', '"command":"id"'),
    ],
)
async def test_a_foreign_cassette_that_writes_what_programs_obey_stops_the_start(
    place: Place, old: str, new: str
) -> None:
    await place.record(AFTER)
    (file,) = place.cassettes.glob("*.jsonl")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(CassetteError, match=r"jsonl, line [0-9]+: "):
        read(file)


async def test_a_path_that_no_replay_may_write_is_left_out_of_a_recording(place: Place) -> None:
    (prompt,) = await place.record({**START, b".envrc": Entry(b"x"), b"b": Entry(b"y"), b"m": link(b"/etc")})
    place.reset()
    async with place.replaying() as server:
        await ask(server, prompt)
    assert tree_at(place.folder) == {**START, b"b": Entry(b"y")}


async def test_the_commands_show_compare_and_keep_what_was_done_to_files(place: Place) -> None:
    prompt = marker(START, AFTER)
    folder = Folder(place.cassettes) if await place.record(AFTER) else None
    assert folder is not None
    (cassette,) = folder.cassettes.values()
    shown = as_conversation(cassette)
    assert "[files]\n" in shown
    assert {"changed a.py", "removed d/e", "added empty", "added new/\\xff"} <= set(shown.splitlines())
    (result,) = await check_folder(folder)
    assert result.same
    update(folder, result)
    assert [each.file_lines for each in Folder(place.cassettes).cassettes.values()] == [cassette.file_lines]
    assert compare(folder, folder) == "1 of 1 requests have the same answer."
    other = place.path / "other"
    place.reset()
    (place.folder / "a.py").write_bytes(b"other\n")
    async with place.recording(cassettes={"record": other}) as server:
        await ask(server, prompt)
    assert '+{"file":{"path_text":"a.py"' in compare(folder, Folder(other)).replace(" ", "").replace("\n", "")


async def test_what_looks_like_an_id_is_written_as_it_is(place: Place) -> None:
    name = b"0f8fad5b-d9cb-469f-a165-70867728950e"
    tree = {name: Entry(b'{"id":"0f8fad5b-d9cb-469f-a165-70867728950e"}'), b"l": link(name)}
    (prompt,) = await place.record(tree)
    place.reset()
    async with place.replaying() as server:
        await ask(server, prompt)
    assert files_in(place.folder) == tree


async def test_a_folder_with_too_much_is_recorded_without_its_files(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(folder_files, "MAX_FILES", 3)
    with pytest.raises(FolderError, match="more than 3 files"):
        folder_files.files_of(str(place.folder), folder_files.NO_FILES)
    await place.record(AFTER)
    assert '"file"' not in place.text()
    assert len(list(place.cassettes.glob("*.jsonl"))) == 1


async def test_a_session_s_turns_are_recorded_and_replayed_with_their_files(place: Place) -> None:
    (prompt,) = await place.record(AFTER)
    place.reset()
    async with place.replaying() as server, openai_client(server) as client:
        first = await client.responses.create(model="codex-5", input=prompt, background=True)
        while first.status in ("queued", "in_progress"):
            first = await client.responses.retrieve(first.id)
        assert first.status == "completed"
        assert files_in(place.folder) == AFTER


def random_tree(chance: random.Random, before: Tree) -> Tree:
    """Returns a tree that differs from another one at random."""
    tree = dict(before)
    for _ in range(chance.randint(1, 6)):
        names = [b"a", b"b", b"c.txt", b"\xff", "ü".encode(), b"d e", b"n\n", b"x'y"]
        path = b"/".join(chance.choice(names) for _ in range(chance.randint(1, 3)))
        for other in list(tree):
            if other.startswith(path + b"/") or path.startswith(other + b"/"):
                del tree[other]
        content = chance.choice(
            [
                b"",
                b"line\n" * chance.randint(1, 50),
                b"\0\1\xff",
                b"no end",
                chance.randbytes(300),
                b"\r\n\xe2\x80\xae\n",
            ]
        )
        old = tree.pop(path, None)
        if old is not None and old.mode is not None and chance.random() < 0.4:
            lines = old.content.split(b"\n")
            lines.insert(chance.randrange(len(lines) + 1), b"inserted %d" % chance.randrange(99))
            tree[path] = Entry(b"\n".join(lines), old.mode)
        elif chance.random() < 0.2:
            tree[path] = link(chance.choice([b"a", b"b/c", b"gone", b"c.txt"]))
        elif chance.random() < 0.8:
            tree[path] = Entry(content, chance.choice([0o644, 0o755, 0o600, 0o444]))
    return tree


@pytest.mark.parametrize(
    ("seed", "turns"),
    [(1, 100), *(pytest.param(seed, 100, marks=pytest.mark.exhaustive) for seed in range(2, 11))],
)
async def test_random_turns_are_replayed_to_trees_that_are_the_same_to_the_bit(
    place: Place, seed: int, turns: int
) -> None:
    chance = random.Random(seed)
    trees: list[Tree] = []
    for _ in range(turns):
        trees.append(random_tree(chance, trees[-1] if trees else place.start))
    prompts = await place.record(*trees)
    assert files_in(place.folder) == trees[-1]
    place.reset()
    async with place.replaying() as server:
        for prompt, tree in zip(prompts, trees, strict=True):
            await ask(server, prompt)
            assert files_in(place.folder) == tree


@pytest.mark.parametrize("name", ["d", "a.py"])
def test_what_could_not_be_read_at_one_look_is_no_change(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real, error = os.open, PermissionError(errno.EACCES, "planted")

    def open_or_fail(path: Any, *given: Any, **options: Any) -> int:
        if path == name:
            raise error
        return real(path, *given, **options)

    folder = str(place.folder)
    whole = folder_files.files_of(folder, folder_files.NO_FILES)
    monkeypatch.setattr(os, "open", open_or_fail)
    less = folder_files.files_of(folder, folder_files.NO_FILES)
    assert len(less.found) < len(whole.found)
    assert [*folder_files.changed_files(folder, whole, less)] == []
    assert [*folder_files.changed_files(folder, less, whole)] == []
    error = OSError(errno.EMFILE, "planted")  # type: ignore[assignment]
    with pytest.raises(FolderError, match="planted"):
        folder_files.files_of(folder, folder_files.NO_FILES)


async def test_an_expression_that_fits_digests_leaves_them_alone(place: Place) -> None:
    tree = {**START, b"a.py": Entry(b"one\nfeed1234\nthree\n"), b"b": Entry(b"feed1234")}
    await place.record(
        {**START, b"c": Entry(b"\0" * 30)},
        tree,
        cassettes={"record": place.cassettes, "scrub": "[a-f][0-9a-f]{7}"},
    )
    files = sorted(place.cassettes.glob("*.jsonl"))
    first, second = (read(file).file_lines for file in files)
    assert [line.path for line in first] == [b"c"]
    changed = next(line for line in second if line.path == b"a.py")
    assert (changed.text, changed.before and changed.before.digest) == (
        "one\n<scrubbed>\nthree\n",
        START[b"a.py"].state.digest,
    )
    assert "feed1234" not in "".join(map(repr, second))


async def test_the_cassettes_in_the_folder_of_a_turn_are_no_work_of_it(place: Place) -> None:
    cassettes = place.folder / "cassettes"
    cassettes.mkdir()
    turn = Turn(model="m", history=(), mode="agent", sandbox="workspace-write", workdir=str(place.folder))
    folder = RecordedFolders([cassettes]).of_turn(turn)
    assert folder is not None
    await folder.look()
    (cassettes / "0001-of-another-turn.jsonl").write_text("{}")
    (place.folder / "new").write_text("")
    assert [each.path for each in await folder.changes()] == [b"new"]


async def test_a_replay_writes_no_cassettes(place: Place) -> None:
    (prompt,) = await place.record({**START, b"cassettes/0009-new.jsonl": Entry(b"{}")})
    place.reset()
    place.cassettes = place.cassettes.rename(place.folder / "cassettes")
    async with place.replaying() as server:
        with pytest.raises(openai.PermissionDeniedError, match="one of them would be a cassette"):
            await ask(server, prompt)
    assert not (place.cassettes / "0009-new.jsonl").exists()


@pytest.mark.parametrize("new", ["a.py", "new/b/c"])
async def test_lines_that_contradict_each_other_stop_the_start(place: Place, new: str) -> None:
    await place.record({**START, b"a.py": Entry(b"x"), b"new/b": Entry(b""), b"z": Entry(b"")})
    (file,) = place.cassettes.glob("*.jsonl")
    file.write_text(file.read_text().replace('"path_text":"z"', f'"path_text":"{new}"'))
    with pytest.raises(CassetteError, match=r"line [0-9]+: .* (comes twice|is a file and a folder)"):
        read(file)


async def test_a_turn_that_changes_too_much_is_recorded_without_its_files(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_files, "MAX_CHANGED_BYTES", 10)
    await place.record({**START, b"b": Entry(b"x" * 6), b"c": Entry(b"x" * 6)})
    assert '"file"' not in place.text()
    assert len(list(place.cassettes.glob("*.jsonl"))) == 1


@pytest.mark.parametrize("approve", [True, False])
async def test_what_this_request_denies_is_not_written(approve: bool) -> None:
    asked = ApprovalRequested("r", "command", "rm a")
    lines = [
        Line(0, "events", [asked]),
        Line(0, "reply", ReplyLine("r", approve=True)),
        Line(0, "events", [TurnEnded(stop="completed")]),
    ]
    dialect = PlayedDialect(WholeCalls(Turn(model="m", history=()), [], takes_replies=True), "")
    dialect.answer("r", Decision(approve=approve))
    written, ended, failures = list[bool](), asyncio.Event(), list[Failure]()

    async def write() -> None:
        written.append(True)

    def fail(failure: Failure) -> None:
        failures.append(failure)
        ended.set()

    reader: Any = SimpleNamespace(on_messages=lambda events, size: None, fail=fail)
    PlayedTransport("0001-a", lines, dialect, lambda _: 0.0, write).attach(reader)
    await asyncio.wait_for(ended.wait(), PATIENCE)
    assert written == [True] * approve
    assert ("what this request denies" in failures[0].message) is not approve


async def test_a_secret_in_several_lines_is_in_no_cassette(place: Place) -> None:
    key = b"-----BEGIN RSA PRIVATE KEY-----\nMIIEplanted\nagain\n-----END RSA PRIVATE KEY-----\n"
    await place.record({**START, b"key": Entry(key)})
    (line,) = (line for file in place.cassettes.glob("*.jsonl") for line in read(file).file_lines)
    assert line.text == "<key>\n"
