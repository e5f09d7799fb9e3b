"""A line of the log is one event of the server's, whatever a client sends."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codex_proxy.app.logs import configure, plain_line
from tests.http.serving import fake_proxy, user
from tests.waiting import PATIENCE

FORGED = "\n2026-01-01 [info     ] forged\r\x1b[2J\x1b]0;title\x07\u2028\x85"
SCRIPT = """
import json, sys
import structlog
from codex_proxy.app.logs import configure
configure("info", sys.argv[1])
log = structlog.get_logger()
log.info("request", path="/" + json.loads(sys.argv[2]), model=json.loads(sys.argv[2]))
try:
    raise ValueError(json.loads(sys.argv[2]))
except ValueError:
    log.exception("turn_internal_error")
"""


@pytest.mark.parametrize("format", ["json", "console"])
def test_a_client_cannot_make_a_line_of_its_own(format: str) -> None:
    """Nor can it write to the terminal of whoever reads the log."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, format, json.dumps(FORGED)],
        capture_output=True,
        timeout=PATIENCE,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    text = done.stderr.decode()
    assert len(text.splitlines()) == 2, "as whatever a reader takes for the end of a line"
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"path": "/v1/models", "status": 200, "ms": 1.5, "stream": True, "model": None},
        {
            "model": "two words",
            "name": "a=b",
            "said": "it's",
            "at": ["x.py:1 f"],
            "lines": "one\ntwo",
            "none": "",
        },
        {"logger": "aiohttp.server", "what": "%s broke"},
    ],
)
@pytest.mark.parametrize("level", ["info", "warning", "critical"])
def test_a_line_without_colours_is_what_structlog_makes(fields: dict[str, object], level: str) -> None:
    event = {"timestamp": "2026-11-26T12:00:00Z", "level": level, "event": "request", **fields}
    console = structlog.dev.ConsoleRenderer(colors=False)
    assert plain_line(None, level, dict(event)) == console(None, level, dict(event))


WORDS = st.text(st.characters() | st.sampled_from("\x00\x07\x1b\x7f\x85\x9b\u2028\u202e\u200f\udcff"))


@pytest.fixture
def configured() -> Iterator[Callable[[str], io.StringIO]]:
    """Sets the log of this process up in a format, and gives what it is written to."""
    before = structlog.get_config()

    def configured(format: str) -> io.StringIO:
        stream = io.StringIO()
        configure("info", format, content=True)
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(stream))
        return stream

    yield configured
    structlog.configure(**before)


@pytest.mark.parametrize("format", ["json", "console"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=WORDS)
def test_nothing_that_is_not_printable_reaches_the_stream(
    configured: Callable[[str], io.StringIO], format: str, words: str
) -> None:
    """Neither as a path, which has no space and no quote that would be quoted, nor inside of another value."""
    stream = configured(format)
    log = structlog.get_logger()
    log.info(
        "request", path=words, model=f"m{words}", said=words, parts=[words, {words: 1}], kind=Kind(words)
    )
    log.info(words)
    text = stream.getvalue()
    assert text.count("\n") == 2
    assert text.replace("\n", "").isprintable()


class Kind:
    """A value that writes itself as it likes."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


async def test_a_path_and_a_model_s_name_are_cut(tmp_path: Path) -> None:
    """They are the client's own words, of any length; this fake agent takes every name of a model."""
    long = "m" * 5000
    async with fake_proxy(tmp_path, {"FAKE_CODEX_MODELS": "any"}) as proxy:
        with structlog.testing.capture_logs() as lines:
            assert (await proxy.ask(user(model=long))).status == 200
            body = {"model": long, "input": "Hello."}
            assert (await proxy.send("POST", "/v1/responses", body)).status == 200
            await proxy.send("GET", f"/v1/models/{long}")
    assert [len(line["model"]) for line in lines if "model" in line] == [100] * 4
    assert max(len(repr(line)) for line in lines) < 1000
