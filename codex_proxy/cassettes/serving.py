"""The parts of a server with `--record` or `--replay`, made for `app`."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from pydantic import SecretStr

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.configured.agents import is_plain_only, make_agent
from codex_proxy.agents.spec import AgentContext, AgentSpec
from codex_proxy.cassettes.content import KEY
from codex_proxy.cassettes.folder import Folder, names_to_match
from codex_proxy.cassettes.format import Cassette, Request
from codex_proxy.cassettes.middleware import recording_middleware, replay_middleware
from codex_proxy.cassettes.recorder import Recorder
from codex_proxy.cassettes.replay import NAME, RecordedTools, ReplayAgent, pace_of
from codex_proxy.cassettes.scrubbing import Scrubber
from codex_proxy.cassettes.settings import (
    CassetteError,
    CassetteSettings,
    settings_that_matter,
    with_recorded_settings,
)
from codex_proxy.core.checks import Check
from codex_proxy.core.interfaces import IdSource
from codex_proxy.http.server_info import RECORDING_TROUBLE
from codex_proxy.process.launch import SECRET_WORDS

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
    raise AssertionError("`app` makes the agent that replays")


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


def folder_of(settings: Any) -> Folder:
    """Returns the cassettes of `--replay`. Raises `CassetteError` if they, `--match` or `--pace` are invalid."""
    own = settings.cassettes
    try:
        pace_of(own.pace)
    except ValueError:
        raise CassetteError(
            f"--pace {own.pace} is not known. Give none, recorded, or a factor such as 2."
        ) from None
    path = own.replay
    folder = Folder(path, names_to_match(own.match), may_be_missing=own.record is not None)
    if not folder.cassettes and own.record is None:
        raise CassetteError(
            f"--replay {path} has no cassettes. Record some with `codex-proxy serve --record {path}`."
        )
    return folder


def common_settings(cassettes: Collection[Cassette], settings: Any) -> dict[str, Any]:
    """Returns the settings with which all of these cassettes were recorded, as far as this server has them."""
    fields = type(settings).model_fields
    names = {name for each in cassettes for name in each.settings if name in fields}
    values = {name: [each.settings.get(name, fields[name].default) for each in cassettes] for name in names}
    return {name: found[0] for name, found in values.items() if all(value == found[0] for value in found)}


class Cassettes(msgspec.Struct, frozen=True):
    """The recorder and the replayed folder of a server, if any."""

    settings: Any
    """The server's settings; when replaying, with the recorded ones."""
    recorder: Recorder | None = None
    """Records every turn."""
    folder: Folder | None = None
    """The cassettes that answer."""
    middlewares: tuple[Any, ...] = ()
    """Further middlewares, for tests."""

    async def agent(self, context: AgentContext) -> Agent:
        """Returns the server's agent. Raises what `make_agent` raises."""
        if self.folder is None:
            return await make_agent(context)
        own = msgspec.structs.replace(
            context, settings=self.settings.model_copy(update={"cassettes": CassetteSettings()})
        )
        pace = pace_of(self.settings.cassettes.pace)
        if self.recorder is None:
            return ReplayAgent(self.folder, pace)
        return ReplayAgent(self.folder, pace, await make_agent(own), self.recorder.flush)

    def tools(self, ids: IdSource) -> RecordedTools | None:
        """Returns the recorded MCP tools; None if the server does not replay."""
        if self.folder is None or self.recorder is not None:
            return None
        return RecordedTools(self.folder, ids.new)

    async def close(self) -> None:
        """Waits until all recordings are written."""
        if self.recorder is not None:
            await self.recorder.close()

    def banner(self, agent: Agent) -> list[str]:
        """Returns the banner's lines about recording or replaying. `agent` is the server's."""
        lines = []
        if isinstance(agent, ReplayAgent):
            folder, missing = agent.folder, agent.missing
            asked = "" if missing is None else f"; {missing.name} is asked for what they lack"
            lines.append(f"  REPLAYS    the cassettes in {folder.path} ({len(folder.cassettes)}){asked}")
        if self.recorder is not None:
            kept = "prompts, answers and what the agent says"
            lines.append(f"  RECORDS    every turn into {self.recorder.folder}: {kept}")
        return lines

    def examples(self) -> list[Request]:
        """Returns requests that the folder answers, if nothing else does: the shortest first."""
        if self.folder is None or self.recorder is not None:
            return []
        found = [
            each.request
            for each in self.folder.cassettes.values()
            if not (each.after or each.request.socket or each.request.body is None)
            and each.answer.status == 200
        ]
        return sorted(found, key=lambda request: len(msgspec.json.encode(request.body)))

    def add_to(self, app: web.Application) -> None:
        """Adds the middlewares. The recording one is the outermost, to see the answers of all others."""
        if self.folder is not None:
            app.middlewares.append(replay_middleware)
        app.middlewares.extend(self.middlewares)
        recorder = self.recorder
        if recorder is not None:
            app.middlewares.insert(0, recording_middleware(recorder))
            app[RECORDING_TROUBLE] = lambda: recorder.trouble


def cassettes_of(settings: Any, environ: Mapping[str, str]) -> Cassettes:
    """Returns the recorder and folder for a server's settings. Raises `CassetteError`."""
    if settings.cassettes.replay is None:
        return Cassettes(settings, recorder_of(settings, environ))
    folder = folder_of(settings)
    settings = with_recorded_settings(settings, common_settings(folder.cassettes.values(), settings))
    return Cassettes(settings, recorder_of(settings, environ), folder)


def recorder_of(settings: Any, environ: Mapping[str, str]) -> Recorder | None:
    """Returns the recorder of a server's turns, if they are recorded. Raises `CassetteError` if they cannot be."""
    own = settings.cassettes
    if own.record is None:
        return None
    matter = settings_that_matter(settings) | ({"builtin_tools": "never"} if is_plain_only(settings) else {})
    scrubber, match = check_recording(settings, environ)
    return Recorder(own.record, scrubber, matter, match)


def check_recording(settings: Any, environ: Mapping[str, str]) -> tuple[Scrubber, tuple[str, ...]]:
    """Returns the scrubber and the fields to match of a server that records. Raises `CassetteError` if `--scrub` or
    `--match` is invalid.
    """
    own = settings.cassettes
    return scrubber_of(settings, environ, [own.scrub] if own.scrub else []), names_to_match(own.match)


def scrubber_of(settings: Any, environ: Mapping[str, str], patterns: list[str]) -> Scrubber:
    """Returns the scrubber of this server's secrets and the names of this machine and its user."""
    keys = [value for name, value in environ.items() if SECRET_WORDS.search(name)]
    own = [getattr(settings, name) for name in type(settings).model_fields] + [settings.webhooks.secret]
    own += [header for table in settings.upstreams.values() for header in table.headers.values()]
    keys += [value.get_secret_value() for value in own if isinstance(value, SecretStr)]
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


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
