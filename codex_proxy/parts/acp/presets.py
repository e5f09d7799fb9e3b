"""The known agents that speak ACP, found by experiments with the releases in `tested_release`, and what a running
program can do, by its preset, its answer to `initialize`, and the operator's settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from codex_proxy.agents.sessions.claude_variables import CLAUDE_VARIABLES
from codex_proxy.agents.shared.conversions import CLAUDE_MAX_OUTPUT
from codex_proxy.core.json_values import object_at, objects_in, text_at, value_at
from codex_proxy.core.options import Capability
from codex_proxy.core.turn import Sandbox
from codex_proxy.parts.acp.messages import PROTOCOL_VERSION

UsageRule: TypeAlias = Literal["turn", "last", "session", "chunks"]
"""What an agent's token count covers: the `turn`; its `last` model call; all turns of the `session`; or one model call,
in an update after each (`chunks`).
"""


Apart: TypeAlias = Literal["sessions", "folders", "processes"]
"""What keeps two clients of a program apart. `sessions`: one process serves all. `folders`: sessions in the same folder
share MCP servers, so one with tools has a process or a folder to itself. `processes`: a session with tools has a
process to itself, and all sessions of a process are of one key.
"""


CAPABILITIES: Final[frozenset[Capability]] = frozenset(
    {"client_tools", "tool_replies", "images", "model_choice"}
)
"""The capabilities until the program runs; then it reports whether it takes `images`."""


class SettingsFile(msgspec.Struct, frozen=True):
    """Settings that an agent takes only from a file, which this server writes."""

    variable: str
    path: str
    """The file if the variable is not set. What the administrator has put there stays in force."""
    settings: Mapping[str, Any]


class AcpPreset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one agent is started, what it can do, and how it deviates from the protocol."""

    name: str
    title: str
    argv: tuple[str, ...]
    """The command; empty for the agent `acp`, whose command is in the settings."""
    package: str = ""
    tested_release: str = ""
    apart: Apart = "processes"
    usage: UsageRule | None = None
    """What the agent's token count covers; None: that is not known, so no usage is reported."""
    read_only: tuple[str, ...] = ()
    """Modes in which the agent writes nothing, or nothing without asking; the preferred first."""
    tool_modes: tuple[str, ...] = ()
    """Modes for turns with client tools, if the agent calls no such tools in the modes of `read_only`."""
    asking: str = ""
    """The mode in which the agent asks before each command and change; empty if it has none."""
    writing: Mapping[str, str] = {}
    """The mode for sandboxes that may write, where the session's first mode will not do."""
    sandboxed: bool = False
    env: Mapping[str, str] = {}
    settings_file: SettingsFile | None = None
    session_meta: Mapping[str, Any] = {}
    titled_by: str = ""
    """The method that sets a session's title, so that the agent does not call its model for one."""
    state_folders: tuple[str, ...] = ()
    """Folders in the user's home to which a confined agent may write."""
    state_files: tuple[str, ...] = ()
    """Further paths in the user's home to which a confined agent may write, in plain-model turns only. They are not
    created.
    """
    sign_ins: tuple[str, ...] = ()
    """Paths in the user's home with another program's sign-in, which the agent reads."""
    keys: tuple[str, ...] = ()
    """Variables with the agent's settings and credentials, which are passed on."""
    sign_in: str = ""
    """What to do to sign in, in a sentence."""
    key_variables: tuple[str, ...] = ()
    """Those of `keys` that suffice to be signed in, each alone."""
    sign_in_files: tuple[str, ...] = ()
    """Paths in the user's home that are there when the user has signed in. There may be other ways to do that."""
    home_variable: str = ""
    """The variable that names another folder in place of the first one in each of `sign_in_files`."""
    errors_as_text: bool = False
    """Whether a failed turn ends like a good one, with a text that begins with `Error: ` and without usage (`Info: `: a
    retry).
    """
    null_usage_fails: bool = False
    one_call_at_a_time: bool = False
    """Whether the agent announces the calls of a step together, and makes them one after the other."""
    close_disturbs: bool = False
    """Whether the end of a session may make the opening of another one fail. Sessions then end with their process."""
    titles_name_tools: bool = False
    """Whether the title of a request for permission is the name of the tool, and nothing that the model has written."""
    added_arguments: tuple[str, ...] = ()
    """Arguments that the agent adds to the schemas of all tools, for itself."""
    for_claude: bool = False
    """Whether its provider is Anthropic."""
    error_log: str = ""
    """A regular expression for lines of stderr about a failed model call, with the groups `session` and `error`."""
    silence_hint: str = ""
    """What the agent is probably doing if it sends nothing for long, for the client."""
    reopens: bool = False
    """Whether the agent can open a closed session with all its messages, also in another process."""
    resume_command: str = ""
    """The command of a terminal that opens a stored session, with whose id it ends; empty if there is none."""
    max_output: int | None = 10_000
    """Maximum bytes of a tool's output that the agent does not cut; None: any."""
    declining_env: Mapping[str, str] = {}
    """Replaces variables of `env` if this server declines all that the agent asks for, so that the model is not offered
    it.
    """
    adds_skills: bool = False
    """Whether a text with `$NAME` adds an installed skill of Codex's."""
    late_seconds: float = 0.0
    """How long the agent may send text of a turn behind the answer that ends it."""
    lists_late: bool = False
    """Whether the agent requests the tools of MCP servers only after the prompt."""


_CLAUDE_KEYS: Final = (
    "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL",
    "CLAUDE_CONFIG_DIR", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX",
    "IS_SANDBOX",
)  # fmt: skip


def _opencode_config(action: str, *, own_mode: bool = False) -> str:
    """Returns the configuration in which OpenCode asks before it acts (`ask`), or may not act (`deny`). `own_mode`: in
    a mode `codex-proxy`, for programs whose modes that write nothing offer no tools of clients.
    """
    acting = (
        "bash",
        "edit",
        "webfetch",
        "websearch",
        "codesearch",
        "external_directory",
        "doom_loop",
        "question",
    )
    mode = {"mode": "primary", "permission": dict.fromkeys(acting, action)}
    config = {
        "permission": dict.fromkeys(acting, action),
        # By itself it asks its model for a title of each session, and may publish sessions.
        "agent": {"title": {"disable": True}} | ({"codex-proxy": mode} if own_mode else {}),
        "share": "disabled",
        "tool_output": {"max_bytes": 10_000_000, "max_lines": 1_000_000},
    }
    return msgspec.json.encode(config).decode()


GEMINI: Final = AcpPreset(
    name="gemini",
    title="Gemini CLI",
    # An untrusted folder gets no MCP servers, and so no tools of the client.
    argv=("gemini", "--acp", "--skip-trust"),
    package="@google/gemini-cli",
    tested_release="0.61.0",
    apart="sessions",
    max_output=None,
    usage="turn",
    asking="default",
    read_only=("plan", "default"),
    one_call_at_a_time=True,
    added_arguments=("wait_for_previous",),
    keys=(
        *("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GEMINI_MODEL"),
        *("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "GOOGLE_APPLICATION_CREDENTIALS"),
        *("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA", "GEMINI_TELEMETRY_ENABLED"),
    ),
    state_folders=(".gemini",),
    # No memory of what clients say (experimental, off by default), and no statistics for its maker.
    settings_file=SettingsFile(
        "GEMINI_CLI_SYSTEM_SETTINGS_PATH",
        "/etc/gemini-cli/settings.json",
        {"experimental": {"autoMemory": False}, "privacy": {"usageStatisticsEnabled": False}},
    ),
    key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
    sign_in_files=(".gemini/oauth_creds.json",),
    sign_in="Run `gemini` once and sign in, or set GEMINI_API_KEY.",
    silence_hint="Gemini CLI reports nothing while its model provider is overloaded or fails: it retries up to 10 "
    'times. With `"general": {"maxAttempts": 1}` in its settings.json it reports the error at once.',
)
QWEN: Final = AcpPreset(
    name="qwen",
    title="Qwen Code",
    argv=("qwen", "--acp"),
    package="@qwen-code/qwen-code",
    tested_release="0.24.4",
    apart="sessions",
    max_output=120_000,
    usage="chunks",
    reopens=True,
    resume_command="qwen --resume",
    asking="default",
    read_only=("plan", "default"),
    tool_modes=("default",),
    one_call_at_a_time=True,
    env={
        "QWEN_DISABLE_AUTO_TITLE": "1",
        "QWEN_USAGE_STATISTICS_ENABLED": "false",
        # Else it learns the tools of MCP servers behind `session/new`, and may call its model without them.
        "QWEN_CODE_LEGACY_MCP_BLOCKING": "1",
    },
    # By itself it has its model write what a client says to `~/.qwen/memories`, asking nobody, in read-only modes, too,
    # and gives it to the sessions of all other clients; and it has its model guess what the user may say next.
    settings_file=SettingsFile(
        "QWEN_CODE_SYSTEM_SETTINGS_PATH",
        "/etc/qwen-code/settings.json",
        {
            "memory": {
                "enableManagedAutoMemory": False,
                "enableManagedAutoDream": False,
                "enableAutoSkill": False,
            },
            "ui": {"enableFollowupSuggestions": False},
        },
    ),
    keys=("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "DASHSCOPE_API_KEY", "QWEN_MODEL"),
    state_folders=(".qwen",),
    key_variables=("OPENAI_API_KEY", "DASHSCOPE_API_KEY"),
    sign_in_files=(".qwen/oauth_creds.json",),
    sign_in="Run `qwen` once and sign in, or set OPENAI_API_KEY (and OPENAI_BASE_URL, OPENAI_MODEL).",
    silence_hint="Qwen Code reports nothing while its model provider is overloaded or fails: it retries for "
    "more than a minute.",
)
OPENCODE: Final = AcpPreset(
    name="opencode",
    title="opencode",
    argv=("opencode", "acp", "--print-logs", "--log-level", "ERROR"),
    package="opencode-ai",
    tested_release="1.18.33",
    apart="folders",
    usage="last",
    reopens=True,
    resume_command="opencode --session",
    read_only=("plan",),
    env={
        # By itself it runs and writes at once.
        "OPENCODE_CONFIG_CONTENT": _opencode_config("ask"),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        # A folder's `opencode.json` and `.opencode` would permit what is asked about, and start programs unasked, as
        # plug-ins still do.
        "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
    },
    # A rejected request would end its turn without an answer.
    declining_env={"OPENCODE_CONFIG_CONTENT": _opencode_config("deny")},
    max_output=None,  # as it is configured here
    late_seconds=0.1,  # other clients have seen 5 to 50 ms
    keys=("OPENCODE_CONFIG", "OPENCODE_CONFIG_DIR", "OPENCODE_API_KEY", "OPENCODE_DISABLE_MODELS_FETCH"),
    state_folders=(
        *(".local/share/opencode", ".local/state/opencode", ".config/opencode", ".cache/opencode"),
    ),
    key_variables=("OPENCODE_API_KEY",),
    sign_in_files=(".local/share/opencode/auth.json",),
    sign_in="Run `opencode auth login`.",
    error_log=r'message="stream error" .*?\bsession\.id=(?P<session>\S+) small=false .*?\berror\.error="(?:\w+: )?'
    r'(?P<error>(?:[^"\\]|\\.)*)',
    silence_hint="opencode may be waiting for a model provider that is unreachable or slow to answer.",
)
COPILOT: Final = AcpPreset(
    name="copilot",
    title="Copilot CLI",
    argv=("copilot", "--acp"),
    package="@github/copilot",
    tested_release="1.0.102",
    apart="sessions",
    max_output=20_000,
    usage="session",
    reopens=True,
    resume_command="copilot --resume",
    read_only=("https://agentclientprotocol.com/protocol/session-modes#plan", "plan"),
    env={"COPILOT_AUTO_UPDATE": "false"},
    keys=(
        *("GH_TOKEN", "GITHUB_TOKEN", "COPILOT_GITHUB_TOKEN", "COPILOT_MODEL", "COPILOT_OFFLINE"),
        *("COPILOT_PROVIDER_BASE_URL", "COPILOT_PROVIDER_API_KEY", "COPILOT_PROVIDER_TYPE"),
    ),
    state_folders=(".copilot", ".cache/copilot"),
    sign_ins=(".config/gh",),
    key_variables=("GH_TOKEN", "GITHUB_TOKEN", "COPILOT_GITHUB_TOKEN", "COPILOT_PROVIDER_API_KEY"),
    sign_in_files=(".config/gh/hosts.yml",),
    sign_in="Run `copilot login`.",
    silence_hint="Copilot CLI reports nothing while its model provider limits its rate: it retries for up "
    "to a minute.",
    errors_as_text=True,
    lists_late=True,
)
CLAUDE_ACP: Final = AcpPreset(
    name="claude-acp",
    title="Claude Code by its ACP adapter",
    argv=("claude-agent-acp",),
    package="@agentclientprotocol/claude-agent-acp",
    tested_release="0.101.0",
    apart="sessions",
    max_output=CLAUDE_MAX_OUTPUT,
    for_claude=True,
    usage="turn",
    reopens=True,
    resume_command="claude --resume",
    # In the modes `plan` and `auto` (the first one from 0.101.0 on) a model decides what runs without being asked.
    asking="default",
    read_only=("default",),
    writing={"danger-full-access": "default"},
    env=CLAUDE_VARIABLES,
    # Prompts are delivered as written: no `@path`, no commands, no words that add something (Claude Code from 2.1.248).
    # The folder's own settings, whose hooks would run unasked, are not read.
    session_meta={
        "claudeCode": {
            "options": {"verbatimPrompts": True, "promptSuggestions": False, "settingSources": ["user"]}
        }
    },
    titled_by="_session/rename",
    keys=_CLAUDE_KEYS,
    state_folders=(".claude",),
    state_files=(".claude.json",),
    key_variables=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    sign_in_files=(".claude/.credentials.json",),
    home_variable="CLAUDE_CONFIG_DIR",
    sign_in="Run `claude` once and sign in, or set ANTHROPIC_API_KEY.",
)
CODEX_ACP: Final = AcpPreset(
    name="codex-acp",
    title="Codex by its ACP adapter",
    argv=("codex-acp",),
    package="@agentclientprotocol/codex-acp",
    tested_release="2.6.0",
    apart="sessions",
    max_output=None,  # as it is configured here
    usage="turn",
    reopens=True,
    resume_command="codex resume --no-daemon",  # else a server in the background keeps the thread
    read_only=("read-only",),
    writing={"workspace-write": "workspace-write", "danger-full-access": "agent-full-access"},
    sandboxed=True,
    env={
        "NO_BROWSER": "1",
        "CODEX_ACP_PROMPT_SUGGESTIONS": "false",
        # `$skill-creator` in a client's text would add that skill to the prompt. Large outputs of tools would be cut.
        "CODEX_CONFIG": '{"skills":{"bundled":{"enabled":false}},"analytics":{"enabled":false},'
        '"tool_output_token_limit":10000000}',
    },
    titled_by="_session/rename",
    state_files=(".codex",),
    keys=("OPENAI_API_KEY", "CODEX_API_KEY"),
    key_variables=("OPENAI_API_KEY", "CODEX_API_KEY"),
    sign_in_files=(".codex/auth.json",),
    home_variable="CODEX_HOME",
    sign_in="Run `codex login`, or set OPENAI_API_KEY.",
    null_usage_fails=True,
    adds_skills=True,
)

KIMI: Final = AcpPreset(
    name="kimi",
    title="Kimi Code",
    argv=("kimi", "acp"),
    package="@moonshot-ai/kimi-code",
    tested_release="2.1.0",
    apart="sessions",
    reopens=True,
    resume_command="kimi --session",
    # It asks before each command and change in this mode; in `plan` it calls no tools at all. It does not say which
    # command it asks about, so that nobody can be asked (no `asking`).
    read_only=("default",),
    titles_name_tools=True,
    close_disturbs=True,
    env={
        "KIMI_CODE_NO_AUTO_UPDATE": "1",
        "KIMI_DISABLE_TELEMETRY": "1",
        # By itself it asks ten times for minutes, without a word, and repeats the text of a stream that broke off.
        "KIMI_LOOP_MAX_ATTEMPTS_PER_STEP": "1",
    },
    keys=(
        *("KIMI_API_KEY", "KIMI_BASE_URL", "KIMI_CODE_HOME", "KIMI_MODEL_NAME", "KIMI_MODEL_API_KEY"),
        *("KIMI_MODEL_BASE_URL", "KIMI_MODEL_PROVIDER_TYPE"),
    ),
    state_folders=(".kimi-code",),
    key_variables=("KIMI_API_KEY", "KIMI_MODEL_API_KEY"),
    home_variable="KIMI_CODE_HOME",
    sign_in="Run `kimi login`, or set KIMI_MODEL_NAME, KIMI_MODEL_API_KEY and KIMI_MODEL_BASE_URL.",
    silence_hint="Kimi Code may be waiting for a model provider that is overloaded.",
)

KILO: Final = AcpPreset(
    name="kilo",
    title="Kilo",
    argv=("kilo", "acp", "--print-logs", "--log-level", "ERROR"),
    package="@kilocode/cli",
    tested_release="7.7.7",
    apart="folders",
    usage="last",
    reopens=True,
    resume_command="kilo --session",
    read_only=("codex-proxy",),
    env={
        # By itself it runs and writes at once, and offers no tools of clients in its modes that write nothing.
        "KILO_CONFIG_CONTENT": _opencode_config("ask", own_mode=True),
        "KILO_DISABLE_AUTOUPDATE": "1",
        # As with opencode: `kilo.json`, `.kilo`, `.kilocode` and opencode's own names.
        "KILO_DISABLE_PROJECT_CONFIG": "1",
        "KILO_TELEMETRY_LEVEL": "off",
        # What is said stays here: no copies of sessions for its maker's web page.
        "KILO_DISABLE_SESSION_INGEST": "1",
        "KILO_DISABLE_CODEBASE_INDEXING": "1",
    },
    declining_env={"KILO_CONFIG_CONTENT": _opencode_config("deny", own_mode=True)},
    max_output=None,  # as it is configured here
    late_seconds=0.1,
    keys=("KILO_CONFIG", "KILO_CONFIG_DIR", "KILO_API_KEY", "KILO_DISABLE_MODELS_FETCH"),
    state_folders=(
        ".local/share/kilo",
        ".local/state/kilo",
        ".config/kilo",
        ".cache/kilo",
        ".kilo",
        ".local/state/kilo-sandbox-policy",
    ),
    key_variables=("KILO_API_KEY",),
    sign_in_files=(".local/share/kilo/auth.json",),
    sign_in="Run `kilo auth login`.",
    error_log=OPENCODE.error_log,
    silence_hint="Kilo may be waiting for a model provider that is unreachable or slow to answer.",
)

PRESETS: Final[Mapping[str, AcpPreset]] = {
    preset.name: preset for preset in (GEMINI, QWEN, OPENCODE, COPILOT, CLAUDE_ACP, CODEX_ACP, KIMI, KILO)
}

READ_ONLY_MODES: Final = ("plan", "read-only", "readonly", "ask")
"""Names of modes in which an agent without a preset is believed to write nothing."""


CLIENT_META: Final = {
    "jetbrains": {"air": {"version": 1, "capabilities": ["sessionFailure", "sessionIndex"]}}
}
"""The `_meta` with which the official adapters report errors as errors, and take titles of sessions."""

INITIALIZE: Final[dict[str, Any]] = {
    "protocolVersion": PROTOCOL_VERSION,
    "clientCapabilities": {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
        "session": {"notices": {}},  # warnings come as notices, not in the text
        "_meta": CLIENT_META,
    },
}
"""The parameters of `initialize`. They offer no files and terminals: the agent has its own and asks before it uses
them.
"""


ASKS_USER: Final[dict[str, Any]] = {"elicitation": {"form": {}, "url": {}}}
"""A capability of clients that is offered where a user may be asked: without it the agent asks for no form."""


class DeclaredFeatures(msgspec.Struct, frozen=True):
    name: str = ""
    version: str = ""
    images: bool = False
    http_tools: bool = False
    """Whether it accepts MCP servers over HTTP; every agent accepts stdio."""
    system_prompt: bool = False
    closes: bool = False
    resumes: bool = False
    loads: bool = False
    """Whether it knows `session/load`, which also sends the session's messages again."""
    deletes: bool = False
    forks: bool = False
    sign_in: str = ""


def read_declared_features(result: object) -> DeclaredFeatures:
    """Reads the result of `initialize`. Fields of an unexpected type count as missing."""
    able = object_at(result, "agentCapabilities")
    sessions = object_at(able, "sessionCapabilities")
    descriptions = (
        text_at(each, "description") or text_at(each, "name")
        for each in objects_in(value_at(result, "authMethods"))
    )
    return DeclaredFeatures(
        name=text_at(result, "agentInfo", "title") or text_at(result, "agentInfo", "name"),
        version=text_at(result, "agentInfo", "version"),
        images=value_at(able, "promptCapabilities", "image") is True,
        http_tools=value_at(able, "mcpCapabilities", "http") is True,
        system_prompt=isinstance(sessions.get("systemPrompt"), dict),
        closes=isinstance(sessions.get("close"), dict),
        resumes=isinstance(sessions.get("resume"), dict),
        deletes=isinstance(sessions.get("delete"), dict),
        forks=isinstance(sessions.get("fork"), dict),
        loads=able.get("loadSession") is True,
        sign_in=next(filter(None, descriptions), ""),
    )


class Program(msgspec.Struct, frozen=True):
    preset: AcpPreset
    declared: DeclaredFeatures = DeclaredFeatures()
    unconfined: bool = False
    """The setting `acp.unconfined`: the agent need not ask before it acts."""
    confined: bool = False
    """Whether this server confines it to the turn's sandbox."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        preset, declared = self.preset, self.declared
        has: dict[Capability, bool] = {
            "images": declared.images,
            "system_prompt": declared.system_prompt,
            "sandbox": preset.sandboxed or self.confined,
            "parallel_calls": bool(preset.tested_release) and not preset.one_call_at_a_time,
            "stored_sessions": bool(self.reopen_method),
            "exact_usage": preset.usage == "chunks",  # each request's model calls are told in that request
        }
        lacks = {name for name, there in has.items() if not there}
        return (CAPABILITIES | {name for name, there in has.items() if there}) - lacks

    @property
    def reopen_method(self) -> str:
        """The method that opens a closed session; empty if none works."""
        if not self.preset.reopens:
            return ""
        return "session/resume" if self.declared.resumes else "session/load" if self.declared.loads else ""

    @property
    def forks_stored(self) -> bool:
        """Whether it copies a session that it has stored, in any of its processes."""
        return self.declared.forks and bool(self.reopen_method) and self.preset.apart != "processes"

    def modes(self, sandbox: Sandbox, *, tools: bool = False, asks: bool = False) -> Sequence[str]:
        """Returns the modes for a turn, the preferred first; empty if any will do. `tools`: whether the turn has
        client tools; `asks`: whether not all is declined that the agent asks for.
        """
        if asks and self.preset.asking:
            return (self.preset.asking,)
        writing = self.preset.writing.get(sandbox)
        if writing is not None:
            return (writing,)
        if self.allows_all(sandbox):
            return ()
        if tools and self.preset.tool_modes:
            return self.preset.tool_modes
        return self.preset.read_only or READ_ONLY_MODES

    def allows_all(self, sandbox: Sandbox) -> bool:
        return self.unconfined and sandbox == "danger-full-access"
