"""The page gives a turn's recording to the key of the turn."""

from __future__ import annotations

from pathlib import Path

from tests.access.keyed import key_header, keyed_proxy
from tests.http.serving import user


async def test_a_key_reads_the_recordings_of_its_own_turns_alone(tmp_path: Path) -> None:
    async with keyed_proxy(
        tmp_path, {"a": {}, "b": {}}, ui=True, cassettes={"record": tmp_path / "cassettes"}
    ) as proxy:
        await proxy.ask(user("A question."), headers=key_header("a"))
        turns = (await proxy.send("GET", "/ui/api/turns", headers=key_header("a"))).body["data"]
        assert [turn["recorded"] for turn in turns] == [True]
        path = f"/ui/api/turns/{turns[0]['id']}/cassette"
        assert "A question." in (await proxy.send("GET", path, headers=key_header("a"))).text
        assert (await proxy.send("GET", path, headers=key_header("b"))).status == 404
