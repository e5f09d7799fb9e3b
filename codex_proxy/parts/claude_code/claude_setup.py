"""Makes the agent `claude-code`, and checks it for `doctor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.configured.agents import settings_with
from codex_proxy.agents.confinement.confinement_setup import (
    confinement_check,
    plain_confinement,
    state_folders,
)
from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.core.checks import Check, CheckBuilder, Installation, failed_check
from codex_proxy.core.faults import Fault
from codex_proxy.files.private import make_folder, temporary_folder
from codex_proxy.parts import own_settings
from codex_proxy.parts.claude_code import ClaudeCodeSettings
from codex_proxy.parts.claude_code.agent import UNMARKED, ClaudeCodeAgent, ClaudeProcesses, request_initialize
from codex_proxy.parts.claude_code.launch import (
    ALLOWED_NAMES,
    CLOUD_NAMES,
    FIRST_WITH_MARK,
    KEY_NAMES,
    NEWEST_TESTED,
    SWITCHES,
    LaunchKey,
    claude_argv,
    find_claude,
    version_in,
    version_text,
)
from codex_proxy.parts.claude_code.results import SIGN_IN
from codex_proxy.process.child import Command, run_short
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.protected_paths import unreadable_paths

INSTALL: Final = "npm install -g @anthropic-ai/claude-code"
NO_CLAUDE: Final = f"Claude Code was not found. Install it (`{INSTALL}`), or give its path with {{}}."
NO_VERSION: Final = (
    "{} --version did not print a version of Claude Code. Check that it is the Claude Code program."
)


OLD_RELEASE: Final = "Claude Code {} is installed; the tested release is {}. Update it with `claude update`."


async def make(context: AgentContext) -> Agent:
    """Makes the agent. Raises `NoAgentError`, `OSError`, or `Fault` if `claude --version` fails."""
    settings = context.settings
    program = program_of(context)
    version = await _installed_version(context, program)
    if version is None:
        raise NoAgentError(NO_VERSION.format(program))
    empty = context.state_dir / "empty"
    make_folder(empty)
    environment, limits = claude_environment(context), context.child_limits
    home = environment.get("CLAUDE_CONFIG_DIR") or os.path.join(environment.get("HOME", ""), ".claude")
    sessions = os.path.join(home, "projects")
    unreadable = (*unreadable_paths(settings), sessions)

    def command(key: LaunchKey) -> Command:
        return Command(claude_argv(program, key, unreadable), environment, key.cwd, limits=limits)

    plain = settings.builtin_tools == "never"
    warm = (
        LaunchKey("model", str(empty))
        if plain
        else LaunchKey("agent", str(settings.workdir), settings.sandbox)
    )
    processes = ClaudeProcesses(
        name="claude-code",
        confinement=await _plain_confinement(context),
        version=version_text(version),
        command=command,
        empty_folder=str(empty),
        warm=warm,
        sessions=sessions,
        kept=min(64, max(1, settings.kept_threads // 8)),
        knows_mark=version >= FIRST_WITH_MARK,
        advice=OLD_RELEASE.format(version_text(version), version_text(NEWEST_TESTED))
        if version < NEWEST_TESTED
        else "",
    )
    return ClaudeCodeAgent(processes, context.clock)


async def _plain_confinement(context: AgentContext) -> PlainConfinement:
    """Returns what confines plain-model turns; the program may use its settings and sign-in."""
    env = claude_environment(context)
    home = env.get("HOME", "")
    own = () if "CLAUDE_CONFIG_DIR" in env else (".claude",)
    folders = state_folders(context, home, own)
    written = (*folders, os.path.join(home, ".claude.json")) if home else folders
    return await plain_confinement(context, "Claude Code", written=written)


def program_of(context: AgentContext) -> str:
    """Returns the program's path, from the settings or PATH. Raises `NoAgentError`."""
    named = own_settings(context.settings, ClaudeCodeSettings).claude_bin
    found = find_claude(named, context.environ.get("PATH", os.defpath))
    if found is None:
        setting = context.where_set("claude_bin")
        wrong = "" if named is None else f"There is no program {named} ({setting}). "
        raise NoAgentError(wrong + NO_CLAUDE.format(setting))
    return found


def program_of_client(name: str, settings: Settings) -> tuple[str, str] | None:
    """Returns the program of the client `claude` that the settings name, if they do, and the name of the setting."""
    agents = (*settings_with(settings, "claude_bin"), settings) if name == "claude" else ()
    named = (own_settings(each, ClaudeCodeSettings).claude_bin for each in agents)
    return next(((os.path.expanduser(each), "claude_bin") for each in named if each), None)


def claude_environment(context: AgentContext) -> dict[str, str]:
    """Returns a child's variables: every child's, `ALLOWED_NAMES`, `SWITCHES`, and the operator's, which alone may be
    keys.
    """
    given = context.child_environment(*ALLOWED_NAMES)
    passed_on = {name for name in SWITCHES if name in given}
    return {**given, **{name: value for name, value in SWITCHES.items() if name not in passed_on}}


async def _installed_version(context: AgentContext, program: str) -> tuple[int, int, int] | None:
    """Returns the release that `claude --version` prints, if it does. Raises `Fault`."""
    folder = os.path.dirname(program) or "/"
    said = await run_short(Command((program, "--version"), claude_environment(context), folder))
    return version_in(said.decode("utf-8", "replace"))


async def installation(context: AgentContext) -> Installation:
    """Returns the program, its release, and whether a sign-in of it can be seen."""
    try:
        program = program_of(context)
    except NoAgentError:
        return Installation(installed=False, install=INSTALL)
    try:
        version = await _installed_version(context, program)
    except Fault as fault:
        return Installation(installed=False, program=program, install=INSTALL, trouble=str(fault))
    if version is None:
        trouble = NO_VERSION.format(program)
        return Installation(installed=False, program=program, install=INSTALL, trouble=trouble)
    signed_in, found = _has_sign_in(claude_environment(context)), version_text(version)
    return Installation(installed=True, program=program, version=found, signed_in=signed_in, sign_in=SIGN_IN)


def _has_sign_in(env: Mapping[str, str]) -> bool | None:
    """Looks for keys that the program gets, and for the file of its sign-in; None if it may be elsewhere."""
    if any(env.get(name) for name in KEY_NAMES):
        return True
    folder = Path(env.get("CLAUDE_CONFIG_DIR") or os.path.join(env.get("HOME", ""), ".claude"))
    if (folder / ".credentials.json").is_file():
        return True
    # A cloud's sign-in, a command of the user's settings that prints a key, the keychain of macOS.
    elsewhere = any(env.get(name) for name in CLOUD_NAMES) or (folder / "settings.json").is_file()
    return None if elsewhere or sys.platform == "darwin" else False


async def check(context: AgentContext) -> list[Check]:
    """Checks program, release and sign-in, without a model call."""
    try:
        program = program_of(context)
    except NoAgentError as error:
        return [failed_check("agent", str(error))]
    checks = [CheckBuilder("agent", path=program).ok(f"{program}.")]
    try:
        version = await _installed_version(context, program)
    except Fault as fault:
        advice = f"Give the right path with {context.where_set('claude_bin')}, or reinstall Claude Code."
        return [*checks, CheckBuilder("version").failed(str(fault), advice)]
    if version is None:
        advice = NO_CLAUDE.format(context.where_set("claude_bin"))
        return [*checks, CheckBuilder("version").failed(NO_VERSION.format(program), advice)]
    found, tested = version_text(version), version_text(NEWEST_TESTED)
    more = f" The newest tested release is {tested}." if version > NEWEST_TESTED else ""
    release = CheckBuilder("version", version=found, newest_tested=tested).ok(
        f"Found Claude Code {found}.{more}"
    )
    with temporary_folder("doctor") as (folder, _):
        argv = claude_argv(program, LaunchKey("model", folder))
        command = Command(argv, claude_environment(context), folder)
        try:
            confinement = await _plain_confinement(context)
            initialized = await confinement.try_out(
                request_initialize, command, lambda answer: answer.signed_in
            )
        except NoAgentError as error:
            return [*checks, failed_check("plain-model turns", str(error))]
        except Fault as fault:
            advice = "Run `claude` directly to see the reason."
            if version < NEWEST_TESTED:
                advice = OLD_RELEASE.format(found, tested)
            return [*checks, release, CheckBuilder("sign-in").failed(str(fault), advice)]
    unseen = [
        name for name in KEY_NAMES if context.environ.get(name) and name not in claude_environment(context)
    ]
    return [
        *checks,
        release,
        _text_check(version >= FIRST_WITH_MARK and initialized.takes_mark, found),
        confinement_check(confinement),
        _sign_in_check(initialized.signed_in, initialized.account, len(initialized.models), unseen),
    ]


def _text_check(takes_mark: bool, version: str) -> Check:
    checking = CheckBuilder("client text", takes_mark=takes_mark)
    if takes_mark:
        return checking.ok("It takes what a client writes as text: a command in it was not run.")
    message, advice = UNMARKED.format(version).rsplit(". ", 1)
    return checking.warning(f"{message}.", advice)


def _sign_in_check(signed_in: bool, account: str, models: int, unseen: list[str]) -> Check:
    """`account`: the kind of sign-in; `unseen`: variables with keys that the program does not get."""
    checking = CheckBuilder("sign-in", account=account, models=models, keys_not_passed_on=", ".join(unseen))
    hint = (
        f" {', '.join(unseen)} is set but not passed on to Claude Code. Name it in PROXY_CHILD_ENV to use it."
        if unseen
        else ""
    )
    if not signed_in:
        return checking.failed(f"Claude Code is not signed in.{hint}", SIGN_IN)
    by = f" ({account})" if account else ""
    return checking.ok(f"Claude Code is signed in{by}, and lists {models} models.")
