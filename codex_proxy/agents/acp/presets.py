"""What is known of single agents before they run, by experiment with the releases named: data, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from codex_proxy.agents.base import Capability

UsageRule: TypeAlias = Literal["turn", "last", "session", "chunks"]
"""What an agent's count of tokens covers: `turn`: the turn; `last`: the last model call of the turn; `session`: all
turns of the session so far; `chunks`: one model call, told in an update after each."""


CAPABILITIES: Final[frozenset[Capability]] = frozenset(
    {"client_tools", "tool_replies", "images", "model_choice"}
)
"""What these agents can do, as far as that is known before one runs; `images` only where the program declares it."""


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One agent that speaks ACP."""

    name: str
    """What `--agent` calls it."""
    title: str
    """What a person calls it."""
    argv: tuple[str, ...]
    package: str = ""
    """The npm package that has its program."""
    tested: str = ""
    """The release of the program that was tested."""
    usage: UsageRule | None = None
    """None: it is not known what its counts cover, so none is reported."""
    read_only: tuple[str, ...] = ()
    """Names of its modes in which it writes nothing, or nothing unasked, the best one first."""
    tool_modes: tuple[str, ...] = ()
    """The same for turns with tools of the client, where it calls none in those of `read_only`."""
    writing: Mapping[str, str] = {}
    """Its modes for wider sandboxes, by sandbox; only where it is `sandboxed`."""
    asks: bool = False
    """It asks before it runs or writes anything."""
    sandboxed: bool = False
    """It keeps the commands that it runs in a sandbox of its own, which its modes name."""
    env: Mapping[str, str] = {}
    """Variables that it is started with."""
    keys: tuple[str, ...] = ()
    """Names of variables with its own settings and credentials, which it may see."""
    sign_in: str = ""
    """What to do so that it is signed in."""
    errors_as_text: bool = False
    """It ends a turn that failed with a text that begins with `Error: ` and tells no usage; a text that begins with
    `Info: ` is about a retry."""
    null_usage_fails: bool = False
    """A `usage` that is null says that the turn failed."""
    one_call_at_a_time: bool = False
    """It makes the calls of a step one after the other, and announces them all at first."""
    lists_late: bool = False
    """It asks for the tools of MCP servers only when it is prompted."""


_CLAUDE_KEYS: Final = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL"),
    *("CLAUDE_CONFIG_DIR", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"),
    *("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "IS_SANDBOX", "CLAUDE_CODE_MAX_RETRIES"),
)

GEMINI: Final = Preset(
    name="gemini",
    title="Gemini CLI",
    # An untrusted folder gets no MCP servers, and so no tools of the client.
    argv=("gemini", "--acp", "--skip-trust"),
    package="@google/gemini-cli",
    tested="0.61.0",
    usage="turn",
    read_only=("plan", "default"),
    asks=True,
    one_call_at_a_time=True,
    keys=(
        *("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GEMINI_MODEL"),
        *("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "GOOGLE_APPLICATION_CREDENTIALS"),
        *("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA", "GEMINI_TELEMETRY_ENABLED"),
    ),
    sign_in="Run `gemini` once and sign in, or set GEMINI_API_KEY.",
)
QWEN: Final = Preset(
    name="qwen",
    title="Qwen Code",
    argv=("qwen", "--acp"),
    package="@qwen-code/qwen-code",
    tested="0.24.4",
    usage="chunks",
    read_only=("plan", "default"),
    tool_modes=("default",),
    asks=True,
    one_call_at_a_time=True,
    keys=("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "DASHSCOPE_API_KEY", "QWEN_MODEL"),
    sign_in="Run `qwen` once and sign in, or set OPENAI_API_KEY (and OPENAI_BASE_URL, OPENAI_MODEL).",
)
OPENCODE: Final = Preset(
    name="opencode",
    title="opencode",
    argv=("opencode", "acp"),
    package="opencode-ai",
    tested="1.18.33",
    usage="last",
    read_only=("plan",),
    asks=True,  # as it is configured here; by itself it runs and writes at once
    env={
        "OPENCODE_CONFIG_CONTENT": '{"permission":{"bash":"ask","edit":"ask","webfetch":"ask"}}',
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
    },
    keys=("OPENCODE_CONFIG", "OPENCODE_CONFIG_DIR", "OPENCODE_API_KEY", "OPENCODE_DISABLE_MODELS_FETCH"),
    sign_in="Run `opencode auth login`.",
)
COPILOT: Final = Preset(
    name="copilot",
    title="Copilot CLI",
    argv=("copilot", "--acp"),
    package="@github/copilot",
    tested="1.0.102",
    usage="session",
    read_only=("https://agentclientprotocol.com/protocol/session-modes#plan", "plan"),
    asks=True,
    env={"COPILOT_AUTO_UPDATE": "false"},
    keys=(
        *("GH_TOKEN", "GITHUB_TOKEN", "COPILOT_GITHUB_TOKEN", "COPILOT_MODEL", "COPILOT_OFFLINE"),
        *("COPILOT_PROVIDER_BASE_URL", "COPILOT_PROVIDER_API_KEY", "COPILOT_PROVIDER_TYPE"),
    ),
    sign_in="Run `copilot login`.",
    errors_as_text=True,
    lists_late=True,
)
CLAUDE_ACP: Final = Preset(
    name="claude-acp",
    title="Claude Code by its ACP adapter",
    argv=("claude-agent-acp",),
    package="@agentclientprotocol/claude-agent-acp",
    tested="0.100.0",
    usage="turn",
    # In the mode `plan` a model of its own decides what runs without being asked.
    read_only=("default",),
    asks=True,
    # Without it the client's tools are behind a search; retries go on for minutes.
    env={"ENABLE_TOOL_SEARCH": "false", "CLAUDE_CODE_MAX_RETRIES": "2"},
    keys=_CLAUDE_KEYS,
    sign_in="Run `claude` once and sign in, or set ANTHROPIC_API_KEY.",
)
CODEX_ACP: Final = Preset(
    name="codex-acp",
    title="Codex by its ACP adapter",
    argv=("codex-acp",),
    package="@agentclientprotocol/codex-acp",
    tested="2.6.0",
    usage="turn",
    read_only=("read-only",),
    writing={"workspace-write": "workspace-write", "danger-full-access": "agent-full-access"},
    sandboxed=True,
    env={"NO_BROWSER": "1"},
    keys=("OPENAI_API_KEY", "CODEX_API_KEY"),
    sign_in="Run `codex login`, or set OPENAI_API_KEY.",
    null_usage_fails=True,
)

PRESETS: Final[Mapping[str, Preset]] = {
    preset.name: preset for preset in (GEMINI, QWEN, OPENCODE, COPILOT, CLAUDE_ACP, CODEX_ACP)
}

READ_ONLY_MODES: Final = ("plan", "read-only", "readonly", "ask")
"""Names of modes that are taken for read-only ones of an agent without a preset."""
