"""What a server has of cassettes: the recorder of `--record`, the folder of `--replay`, and the middlewares of
both, which see each request before its handler does.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web
from pydantic import BaseModel, SecretStr

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.configured.agents import is_plain_only, make_agent
from codex_proxy.agents.spec import AgentContext, AgentSpec
from codex_proxy.app.server_parts import ExampleRequest, ServerParts
from codex_proxy.app.system import RandomIds
from codex_proxy.core.checks import Check, CheckBuilder, failed_check
from codex_proxy.files.private import why_not_created
from codex_proxy.http.endpoint import Handler, endpoint_of
from codex_proxy.http.middleware.access import keys_in
from codex_proxy.http.middleware.content_log import watch_contents
from codex_proxy.http.server_info import RECORDING_TROUBLE
from codex_proxy.parts.cassettes.content import KEY
from codex_proxy.parts.cassettes.faulty_answers import FaultyAnswers, add_faults
from codex_proxy.parts.cassettes.format import Cassette
from codex_proxy.parts.cassettes.recorder import RecordedExchange, Recorder
from codex_proxy.parts.cassettes.replay import (
    NAME,
    Folder,
    RecordedTools,
    ReplayAgent,
    ReplayedRequest,
    names_to_match,
    pace_of,
)
from codex_proxy.parts.cassettes.scrubbing import Scrubber
from codex_proxy.parts.cassettes.settings import (
    CassetteError,
    CassetteTable,
    settings_that_matter,
    table_of,
    with_recorded_settings,
)
from codex_proxy.process.launch import SECRET_WORDS
from codex_proxy.runs.observers import REQUEST_RECORDER
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.protected_paths import protected_paths

MAX_EXAMPLE = 2000
"""The longest body that the banner shows."""
AGENT_HOMES = (
    "CODEX_HOME",
    "CLAUDE_CONFIG_DIR",
    "GEMINI_CLI_HOME",
    "QWEN_HOME",
    "COPILOT_HOME",
    "XDG_CONFIG_HOME",
)
"""The variables with agents' own folders, which may be outside of the user's home."""


async def _make(context: AgentContext) -> Agent:
    raise AssertionError("`Cassettes` makes the agent that replays")


async def _check(context: AgentContext) -> list[Check]:
    try:
        folder = folder_of(context.settings)
    except CassetteError as error:
        return [
            Check(name="agent", status="failed", message=str(error), advice="Correct the folder of --replay.")
        ]
    return [Check(name="agent", status="ok", message=f"{len(folder.cassettes)} cassettes can be replayed.")]


SPEC = AgentSpec(
    name=NAME,
    summary="the cassettes of `--replay`",
    make=_make,
    check=_check,
    confined=True,  # it runs nothing
)


def folder_of(settings: Settings) -> Folder:
    """Returns the cassettes of `--replay`. Raises `CassetteError` if they, `--match` or `--pace` are invalid."""
    own = table_of(settings)
    try:
        pace_of(own.pace)
    except ValueError:
        raise CassetteError(
            f"--pace {own.pace} is not known. Give none, recorded, or a factor such as 2."
        ) from None
    path = own.replay
    assert path is not None
    folder = Folder(path, names_to_match(own.match), may_be_missing=own.record is not None)
    if not folder.cassettes and own.record is None:
        raise CassetteError(
            f"--replay {path} has no cassettes. Record some with `codex-proxy serve --record {path}`."
        )
    return folder


def common_settings(cassettes: Collection[Cassette], settings: Settings) -> dict[str, Any]:
    """Returns the settings with which all of these cassettes were recorded, as far as this server has them."""
    fields = type(settings).model_fields
    names = {name for each in cassettes for name in each.settings if name in fields}
    values = {name: [each.settings.get(name, fields[name].default) for each in cassettes] for name in names}
    return {name: found[0] for name, found in values.items() if all(value == found[0] for value in found)}


class Cassettes(FaultyAnswers):
    """The recorder and the replayed folder of a server, and the faults that tests ask for."""

    def __init__(self, settings: Settings, recorder: Recorder | None, folder: Folder | None) -> None:
        """`settings`: the server's; when replaying, with the recorded ones. `recorder` records every turn; the
        cassettes of `folder` answer.
        """
        super().__init__()
        self._settings = settings
        self._recorder = recorder
        self._folder = folder
        self._missing: Agent | None = None
        """The agent that answers what the folder does not."""

    def settings(self, settings: Settings) -> Settings:
        return self._settings

    async def agent(self, context: AgentContext) -> Agent | None:
        if self._folder is None:
            return None
        pace = pace_of(table_of(self._settings).pace)
        files = protected_paths(self._settings, context.environ) if table_of(self._settings).files else None
        if self._recorder is None:
            return ReplayAgent(self._folder, pace, protected=files)
        own = self._settings.model_copy(update={"cassettes": CassetteTable()})
        self._missing = await make_agent(msgspec.structs.replace(context, settings=own))
        return ReplayAgent(self._folder, pace, self._missing, self._recorder.flush, files)

    def tools(self, server: ServerParts) -> RecordedTools | None:
        """Returns the recorded MCP tools, if only cassettes answer."""
        if self._folder is None or self._recorder is not None:
            return None
        return RecordedTools(self._folder, RandomIds().new)

    def add_to(self, app: web.Application) -> None:
        """The recording middleware is the outermost but for traces, to see the answers of all others."""
        if self._folder is not None:
            app.middlewares.append(replay_middleware)
            add_faults(app)
        else:
            super().add_to(app)
        recorder = self._recorder
        if recorder is not None:
            app.middlewares.insert(0, recording_middleware(recorder))
            app[RECORDING_TROUBLE] = lambda: recorder.trouble

    def banner(self) -> list[str]:
        lines = []
        if self._folder is not None:
            path, count, missing = self._folder.path, len(self._folder.cassettes), self._missing
            asked = "" if missing is None else f"; {missing.name} is asked for what they lack"
            lines.append(f"  REPLAYS    the cassettes in {path} ({count}){asked}")
        if self._recorder is not None:
            kept = "prompts, answers and what the agent says"
            lines.append(f"  RECORDS    every turn into {self._recorder.folder}: {kept}")
        return lines

    def example(self) -> ExampleRequest | str:
        """Returns the shortest request that the folder answers, if nothing else does."""
        if self._folder is None or self._recorder is not None:
            return ""
        requests = (
            each.request
            for each in self._folder.cassettes.values()
            if not (each.after or each.request.socket or each.request.body is None)
            and each.answer.status == 200
        )
        found = [(msgspec.json.encode(each.body).decode(), each) for each in requests]
        body, request = min(found, key=lambda pair: len(pair[0]), default=("", None))
        if request is None or len(body) > MAX_EXAMPLE:
            return "Ask what a cassette was asked: `codex-proxy cassettes show FILE` prints it."
        return ExampleRequest(request.line.partition(" ")[2], body, request.headers)

    async def close(self) -> None:
        """Waits until all recordings are written."""
        if self._recorder is not None:
            await self._recorder.close()


def cassettes_of(settings: Settings, environ: Mapping[str, str]) -> Cassettes:
    """Returns the recorder and folder for a server's settings. Raises `CassetteError`."""
    own = table_of(settings)
    folder = None
    if own.replay is not None:
        folder = folder_of(settings)
        settings = with_recorded_settings(settings, common_settings(folder.cassettes.values(), settings))
    return Cassettes(settings, recorder_of(settings, environ), folder)


def check_folder(folder: Path, settings: Settings, environ: Mapping[str, str]) -> Check:
    check = CheckBuilder("recordings", path=str(folder), exists=folder.exists())
    try:
        check_recording(settings, environ)
    except CassetteError as error:
        return failed_check("recordings", str(error), check.facts)
    if not folder.exists():
        why = why_not_created(folder)
    elif not folder.is_dir():
        why = "it is no folder"
    else:
        why = "" if os.access(folder, os.W_OK | os.X_OK) else "it is not writable"
    if why:
        return check.failed(f"--record {folder} cannot be written: {why}.", "Give another folder.")
    return check.ok(f"Every turn is recorded into {folder}.")


def recorder_of(settings: Settings, environ: Mapping[str, str]) -> Recorder | None:
    """Returns the recorder of a server's turns, if they are recorded. Raises `CassetteError` if they cannot be."""
    own = table_of(settings)
    if own.record is None:
        return None
    matter = settings_that_matter(settings) | ({"builtin_tools": "never"} if is_plain_only(settings) else {})
    scrubber, match = check_recording(settings, environ)
    return Recorder(own.record, scrubber, matter, match, files=own.files)


def check_recording(settings: Settings, environ: Mapping[str, str]) -> tuple[Scrubber, tuple[str, ...]]:
    """Returns the scrubber and the fields to match of a server that records. Raises `CassetteError` if `--scrub` or
    `--match` is invalid.
    """
    own = table_of(settings)
    return scrubber_of(settings, environ, [own.scrub] if own.scrub else []), names_to_match(own.match)


def scrubber_of(settings: Settings, environ: Mapping[str, str], patterns: list[str]) -> Scrubber:
    """Returns the scrubber of this server's secrets and the names of this machine and its user."""
    keys = [value for name, value in environ.items() if SECRET_WORDS.search(name)]
    keys += _secrets_in(settings)
    host = socket.gethostname()
    folders = {"<home>": Path.home(), "<workdir>": settings.workdir}
    names = {name: [str(folder), os.path.realpath(folder)] for name, folder in folders.items()}
    names["<home>"].append(environ.get("HOME", ""))
    homes = [str(settings.codex_home), *(environ.get(name, "") for name in AGENT_HOMES)]
    names["<agent_home>"] = [spelled for home in homes if home for spelled in (home, os.path.realpath(home))]
    names["<state>"] = [str(settings.state_dir), os.path.realpath(settings.state_dir)]
    names |= {
        KEY: keys,
        "<host>": [host, host.partition(".")[0], socket.getfqdn() if "." in host else ""],
        "<user>": [_user(), environ.get("USER", ""), environ.get("LOGNAME", "")],
    }
    return Scrubber(names, patterns)


def _secrets_in(value: object) -> Iterator[str]:
    """Yields the secrets of settings, also those in their tables."""
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, dict):
        for each in value.values():
            yield from _secrets_in(each)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _secrets_in(getattr(value, name))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


KEPT_HEADERS: Final = ("x-codex-", "x-no-keepalive", "anthropic-", "openai-beta", "prefer")
"""Prefixes of headers on which an answer may depend."""
CASSETTE_HEADER: Final = "x-codex-cassette"
"""The request header that names the cassette to replay, instead of finding it by content."""


def recording_middleware(recorder: Recorder) -> Any:
    """Returns the middleware that records turns. It runs before all others, to see their failures."""

    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        REQUEST_RECORDER.set(None)
        endpoint = endpoint_of(request)
        socket = request.method == "GET" and request.headers.get("upgrade", "").lower() == "websocket"
        if recorder.trouble or endpoint is None or not (endpoint.kind == "turn" or socket):
            return await handler(request)
        headers = {
            name.lower(): value
            for name, value in request.headers.items()
            if name.lower().startswith(KEPT_HEADERS)
        }
        exchange = RecordedExchange(recorder, f"{request.method} {request.path}", headers, keys_in(request))
        REQUEST_RECORDER.set(exchange)
        watch_contents(request, exchange.add_content)
        try:
            response = await handler(request)
        except BaseException:
            if socket:  # that its client has closed: its last turn may be over
                exchange.end(101)
            raise
        if isinstance(response, web.Response) and isinstance(response.body, bytes):
            exchange.add_content("answer", response.body)
        exchange.end(response.status)
        return response

    return record


@web.middleware
async def replay_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Notes, for the request's turns, the cassette that its header names."""
    if endpoint_of(request) is not None:
        name = request.headers.get(CASSETTE_HEADER, "")
        REQUEST_RECORDER.set(ReplayedRequest(name, REQUEST_RECORDER.get()))
    return await handler(request)
