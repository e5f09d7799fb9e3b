"""The parts of the program: what not every user needs, a folder for each (`codex_proxy/parts/NAME`), which declares
itself in its object `PART`. Everything else of `codex_proxy` is the core. The core works without any of the folders,
and imports nothing from them: it finds them here. The part of another package is used only if the settings name its
agent (`agents.registry`).
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from codex_proxy.core.passing import PASSED_PATHS


class Flag(msgspec.Struct, frozen=True):
    """A flag of `serve` that sets a setting, or a key of a table."""

    name: str
    setting: str
    """`name`, or `table.key`. The flag has its type and description."""
    metavar: str = ""
    """What stands for the value in `--help`; empty for a choice or a flag without one."""
    value_of: str = ""
    """The flag, if any, whose value the setting gets: then this one has none of its own."""
    help: str = ""
    """The description of a flag with `value_of`."""
    serve_only: bool = False
    """Whether only `serve` has it, and no other command with `--agent`."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Declares a part. Code is named by `module:attribute`, and imported when it is used. Of a plugin's part only
    `agents`, `checks` and `server` are used.
    """

    name: str
    page: str = ""
    """Its page in docs/."""
    uses: tuple[str, ...] = ()
    """The parts that it imports: without one of them it is absent, too."""
    agents: Mapping[str, str] = {}
    """Its agents: the `AgentSpec` for each name."""
    settings: str = ""
    """A pydantic model of its settings, which the server's `Settings` inherit from. Its module is imported with every
    command, and must be light.
    """
    flags: tuple[Flag, ...] = ()
    files: Mapping[str, str] = {}
    """The settings that name a file which an agent's commands may neither read nor change, each with what the file is.
    """
    needs: Mapping[str, tuple[str, ...]] = {}
    """The settings without effect unless one of these other settings is set."""
    capabilities: Mapping[str, str] = {}
    """The settings without effect unless an agent has a capability."""
    tools: tuple[str, ...] = ()
    """The types of tools in requests that it serves."""
    stores: Mapping[str, str] = {}
    """Its stores that several servers may use: the class for each scheme of an address. It has the functions `open` and
    `read_keys` of `SharedStore` (`codex_proxy.store.store`).
    """
    extra: str = ""
    """The extra of this project with the packages that its stores need."""
    fake_dialects: Mapping[str, str] = {}
    """The protocols that the fake agent can speak with the part: the `AgentSpec` for each."""
    programs: str = ""
    """A function of a client's name and the settings, which `codex-proxy run` asks: returns the program that they name
    for this client, and the setting that does; or None.
    """
    commands: str = ""
    """A function of one that prints a text, and of the click option that gives a command the server's settings as
    `settings`. It returns the part's click commands; one in a group of the core is named with it (`store copy`).
    Imported with every command.
    """
    serve: str = ""
    """A function of the settings, the arguments of this command and a function that prints a text, which `serve` asks:
    serves in processes of its own, and returns the exit status; or None, and this process serves.
    """
    client_guides: str = ""
    """A function of the settings and a server's address, which the page asks: returns how each client is connected
    (`GET /ui/api/connect`).
    """
    endpoints: str = ""
    """Its endpoints (`codex_proxy.http.endpoint`), a tuple."""
    chosen_agent: str = ""
    """A function of the settings, which names the `AgentSpec` of the agent that serves in place of all that are
    configured; empty if none does.
    """
    agent_tables: Mapping[str, str] = {}
    """Its settings that are tables of agents, as `[agents.NAME]` is: for each the `AgentTables` (see
    `agents.configured.agents`).
    """
    checks: str = ""
    """A function of the settings and the environment, which returns the part's checks for `doctor` when it is awaited.
    """
    exported: str = ""
    """A function of the settings and the environment, which `store export` asks: for kinds of records it returns a
    function of the record's JSON, which returns fields that are added to its line.
    """
    server: str = ""
    """A function of the settings and the environment, which returns the `ServerPart` of one server, or None if no
    setting wants the part.
    """


class KnownPart(msgspec.Struct, frozen=True):
    """What a part of this project provides, as far as the core has to know it if the part is missing: who asks for
    something of it gets an error that names the part.
    """

    agents: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """The names of its settings, also old ones, and its variables that are not called `PROXY_<SETTING>`."""
    tools: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """The paths below `/v1` that only the part serves, or its agents; one that ends in a slash stands for all that
    begin with it. Those of a part that it uses are that one's.
    """
    commands: tuple[str, ...] = ()
    fake_dialects: tuple[str, ...] = ()


KNOWN: Final[Mapping[str, KnownPart]] = {
    "sessions": KnownPart(
        settings=("action_timeout", "session_max_bytes"), paths=("/agents", "/agents/", "/vaults")
    ),
    "managed_agents": KnownPart(
        paths=("/agents", "/agents/", "/environments", "/environments/", "/sessions", "/sessions/")
    ),
    "snapshots": KnownPart(
        settings=(
            *("snapshot_artifacts", "snapshot_max_bytes", "snapshot_max_file_bytes"),
            *("snapshot_max_files", "snapshot_max_total_bytes", "snapshot_wait", "snapshots", "worktrees"),
        ),
        paths=("/turns", "/turns/"),
    ),
    "terminal": KnownPart(commands=("chat",)),
    "clients": KnownPart(commands=("connect", "run")),
    "service": KnownPart(commands=("service",)),
    "files": KnownPart(settings=("files",), paths=("/files", "/files/")),
    "traces": KnownPart(),
    "claude_code": KnownPart(
        agents=("claude-code",), settings=("claude_bin", "CLAUDE_BIN"), flags=("claude_bin",)
    ),
    "acp": KnownPart(
        agents=("gemini", "qwen", "opencode", "copilot", "claude-acp", "codex-acp", "kimi", "kilo", "acp"),
        settings=("acp",),
        flags=("agent_command", "agent_env", "agent_usage", "agent_unconfined"),
        fake_dialects=("acp",),
    ),
    "cassettes": KnownPart(
        settings=("cassettes",),
        flags=("record", "replay", "match", "pace", "scrub", "record_missing"),
        commands=("cassettes",),
    ),
    "mcp": KnownPart(
        settings=(
            *("mcp_allowed_urls", "mcp_call_timeout", "mcp_config", "mcp_tool_refresh_interval"),
            *("MCP_SERVERS_CONFIG_PATH", "MCP_TOOL_REFRESH_INTERVAL"),
        ),
        flags=("mcp_config",),
        tools=("mcp",),
    ),
    "mcp_server": KnownPart(paths=("/mcp",), commands=("mcp",)),
    "machines": KnownPart(
        settings=("workers",),
        stores=("postgresql", "postgres"),
        flags=("workers",),
        paths=("/cluster",),
        commands=("store copy",),
    ),
    "upstream": KnownPart(
        agents=("openai-chat", "openai-responses"),
        settings=("upstream_key", "upstream_url", "upstreams", "OPENAI_BASE_URL_INTERNAL"),
        flags=("upstream_url",),
        paths=PASSED_PATHS,
    ),
}
"""Every part of this project. Its folder may be absent."""

Table = TypeVar("Table")


@cache
def parts() -> tuple[Part, ...]:
    """Returns the parts whose folders are there, with those of the parts that they use."""
    return tuple(part for part in _found() if all(map(_is_there, part.uses)))


@cache
def _found() -> tuple[Part, ...]:
    return tuple(importlib.import_module(f"{__name__}.{name}").PART for name in KNOWN if _is_there(name))


def _is_there(name: str) -> bool:
    found = importlib.util.find_spec(f"{__name__}.{name}")
    return found is not None and found.origin is not None  # a folder without modules has a spec, but no file


@cache
def absent_parts() -> Mapping[str, KnownPart]:
    """Returns the parts of this project that are not in `parts`."""
    there = {part.name for part in parts()}
    return {name: known for name, known in KNOWN.items() if name not in there}


def absent_part(kind: str, name: str) -> str:
    """Returns the part whose folder is absent, and which has the agent (`kind`: `agents`), the setting (`settings`,
    also the name of a variable), the type of tools (`tools`), the flag (`flags`), the path (`paths`), the command
    (`commands`), the protocol of the fake agent (`fake_dialects`) or the scheme of a store's address (`stores`); empty
    if there is none.
    """
    return next((part for part, known in absent_parts().items() if name in getattr(known, kind)), "")


def absent_part_text(part: str) -> str:
    """Returns what an error calls an absent part, or the one that it uses."""
    used = [each for found in _found() if found.name == part for each in found.uses]
    lacking = next((each for each in used if not _is_there(each)), part)
    return f"the part {lacking}, which is not in this installation"


def shared_store() -> str:
    """Returns the form of the address of a store that several servers may use; empty without the part that has one."""
    return next((f"{scheme}://user:password@host/database" for part in parts() for scheme in part.stores), "")


def agent_tables() -> dict[str, str]:
    """Returns the settings that are tables of agents of parts (`Part.agent_tables`), with the code for each."""
    return {setting: code for part in parts() for setting, code in part.agent_tables.items()}


def own_settings(settings: object, table: type[Table]) -> Table:
    """Returns the server's settings, typed as those of a part (`Part.settings`), which they inherit from."""
    assert isinstance(settings, table)
    return settings


def own_settings_of(part: Part) -> tuple[str, ...]:
    """Returns the names of a part's settings."""
    return tuple(pkgutil.resolve_name(part.settings).model_fields) if part.settings else ()


def declared(what: str) -> Iterator[Any]:
    """Yields the code that parts declare in their field `what`, and imports it."""
    for part in parts():
        if reference := getattr(part, what):
            yield pkgutil.resolve_name(reference)
