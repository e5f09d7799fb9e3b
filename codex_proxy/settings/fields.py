"""Every setting, and what follows from several of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, NonNegativeInt, PrivateAttr, SecretStr, ValidationInfo
from pydantic.functional_validators import field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from codex_proxy.admission.routes import Route
from codex_proxy.agents.names import DEFAULT_AGENT, check_name, names
from codex_proxy.core.turn import Approvals, Sandbox
from codex_proxy.parts import absent_part, absent_part_text, agent_tables, declared, parts, shared_store
from codex_proxy.settings.sources import SourcedSettings, default_config_file, folder_of_user, home_folder
from codex_proxy.settings.tables import AgentTable, TableName, WebhookTable, from_variables, join_list

if TYPE_CHECKING:
    FakeDialect = str
else:
    FakeDialect = Literal[("proto", "app-server", *(name for part in parts() for name in part.fake_dialects))]


_SHARED_STORE = (
    f", or a database, which several servers may share (`{shared_store()}`)" if shared_store() else ""
)


def store_scheme_fault(scheme: str) -> str:
    """Returns why no part has a store for addresses with this scheme, as the end of a sentence; empty if one has."""
    if any(scheme in part.stores for part in parts()):
        return ""
    part = absent_part("stores", scheme)
    return f"an address of {absent_part_text(part)}" if part else "not the address of a store"


def default_state_dir() -> Path:
    """Returns `$XDG_STATE_HOME/codex-proxy` or `~/.local/state/codex-proxy`. Raises `UserError`."""
    return folder_of_user("XDG_STATE_HOME", ".local/state") / "codex-proxy"


def _codex_home() -> Path:
    return home_folder() / ".codex"


class CoreSettings(SourcedSettings):
    """The settings of the core. A setting is read from the variable `PROXY_<NAME>`, a table's key from
    `PROXY_<TABLE>_<KEY>`, unless its field names others.
    """

    # Where it listens, and who may come in.
    host: str = from_variables(
        "PROXY_HOST", "API_ADAPTER_HOST", default="127.0.0.1", description="address to listen on"
    )
    port: int = from_variables(
        "PROXY_PORT",
        "API_ADAPTER_PORT",
        default=11435,
        ge=0,
        le=65535,
        description="port to listen on; 0: any free port",
    )
    ollama: bool = Field(False, description="also listen on Ollama's port, 11434, if free")
    api_key: SecretStr | None = Field(
        None, description="key that clients must send as a bearer token; it is named `default`"
    )
    keys_file: Path | None = Field(
        None, description="file of `codex-proxy keys`; unset: `keys.toml` in the state folder"
    )
    trusted_proxies: str = Field(
        "", description="addresses and networks of trusted reverse proxies, separated by commas"
    )
    allowed_hosts: str = Field("", description="further accepted names in `Host`, separated by commas")
    allowed_origins: str = Field(
        "",
        description="origins whose web pages may use this server (`app://obsidian.md`), separated by commas",
    )
    body_limit: int = Field(32 << 20, gt=0, description="largest request body, in bytes")

    # The agent.
    agent_plugin: str | None = Field(
        None,
        description="an agent of another Python package, as `module:SPEC` (docs/adding-an-agent.md)",
    )
    agents: dict[TableName, AgentTable] = Field(
        {}, description="several agents in one server, a table for each"
    )
    routes: dict[TableName, Route] = Field(
        {}, description="which model answers which requests, a table for each rule"
    )
    agent: str = Field(
        DEFAULT_AGENT,
        description="agent that answers; auto: the plugin's agent, else the installed Codex",
        examples=[*names()],
    )
    agent_confinement: Literal["auto", "codex", "bubblewrap", "landlock", "none"] = Field(
        "auto",
        description=(
            "sandbox of the processes of plain-model turns, and of ACP agents that never ask for permission "
            "(docs/agents.md); auto: the first that works"
        ),
    )
    agent_state_folders: str = Field(
        "",
        description=("further folders that a confined agent may read and write, separated by colons"),
    )
    codex_bin: str | None = from_variables(
        "CODEX_BIN", default=None, description="path of the Codex binary; unset: `codex` on PATH"
    )
    codex_home: Path = from_variables(
        "CODEX_HOME",
        default_factory=_codex_home,
        description="Codex's home folder",
    )
    codex_model: str | None = from_variables(
        "CODEX_MODEL", default=None, description="model behind the name codex-5; unset: the agent's default"
    )
    workdir: Path = Field(default_factory=Path.cwd, description="folder in which agent turns work")
    workdir_roots: str = Field("", description="folders that requests may choose, separated by colons")
    sandbox: Sandbox = Field("read-only", description="what the agent's own commands may do")
    approvals: Approvals = Field(
        "decline",
        description=(
            "what becomes of an agent's questions for permission in sessions of the Agents API: decline them, or ask "
            "the client, whose key must have `may_approve`; without keys a server in a terminal shows a key for that "
            "(docs/agents-api.md)"
        ),
    )
    builtin_tools: Literal["auto", "always", "never"] = Field(
        "auto", description="which turns are agent turns, not plain-model turns; auto: the request decides"
    )
    fake_dialect: FakeDialect = Field("proto", description="protocol of the fake agent")
    child_env: str = Field(
        "", description="further environment variables that agents' processes get, separated by commas"
    )
    child_limits: dict[Literal["open_files", "address_space", "processes"], NonNegativeInt] = Field(
        {},
        description="table of limits of each child process: `open_files` (4096; 0: the server's limit), "
        "`address_space` in bytes, `processes` of this user (0: no limit)",
    )
    state_dir: Path = Field(default_factory=default_state_dir, description="folder of this server's files")

    # Models.
    env: Literal["prod", "dev"] = Field("prod", description="dev lists codev-5* models, prod codex-5*")
    model_aliases: str = Field(
        "",
        description="further names of models, separated by commas: gpt-4o=codex-5,other=codex-5-high; `*` matches any "
        "characters: claude-*=codex-5",
    )

    # Answers.
    max_chat_choices: int = Field(5, ge=1, le=128, description="largest `n` of a chat request")
    choices: Literal["broadcast", "sample"] = Field(
        "broadcast",
        description="for `n` choices: one turn for all (broadcast), or one turn each (sample)",
    )
    structured_output: bool = Field(
        True, description="accept response_format json_object and json_schema in chat requests"
    )
    image_fetch: str = Field("", description="hosts from which https images are fetched, separated by commas")
    chat_profile: Literal["openai", "codex-completions-api"] = Field(
        "openai", description="form of chunks in chat streams"
    )
    logprobs: Literal["refuse", "ignore"] = Field(
        "refuse",
        description="requests for log probabilities, which no agent supports: a 400, or ignored",
    )
    reasoning_state: Literal["client", "server", "off"] = Field(
        "client",
        description="where the model's reasoning is kept between requests of a Messages client: in its history and on "
        "the server, only on the server, or nowhere",
    )
    stream_metrics: bool = Field(False, description="add measured times to the usage chunk of chat streams")
    enable_parallel_tool_calls: bool = Field(
        False,
        description="start Codex with `parallel_tool_calls=true`",
    )
    show_activity: bool = Field(True, description="show the agent's commands in `reasoning_content`")
    web_search: bool = Field(
        True,
        description="allow requests to enable the agent's web search (`web_search`, `web_search_options`)",
    )

    # Limits and times.
    sse_max_concurrency: int | None = Field(
        None, ge=1, description="maximum open streams; more get a 429; unset: no limit"
    )
    rate_limit_rpm: int = Field(
        0, ge=0, description="maximum requests of one key per minute; more get a 429; 0: no limit"
    )
    key_concurrency: int = Field(256, ge=0, description="maximum requests of one key at once; 0: no limit")
    max_input_items: int = Field(
        10_000, ge=1, description="maximum messages or input items of a request, without stored context"
    )
    max_output_size: int = Field(
        32 << 20, ge=1, description="maximum characters of output of a turn; then it ends with `length`"
    )
    max_running_turns: int = Field(
        16, ge=1, description="maximum running turns; up to 64 more of one key wait"
    )
    queue_wait: float = Field(
        30.0,
        ge=0,
        description="maximum seconds that a turn waits to start (then it gets a 429), or for an MCP server (then its "
        "tools are missing); 0: turns do not wait",
    )
    first_event_timeout: float = Field(
        60.0, gt=0, description="maximum seconds to the first visible output; then the turn fails"
    )
    idle_timeout: float = from_variables(
        "PROXY_IDLE_TIMEOUT",
        "STREAM_TIMEOUT",
        default=300.0,
        gt=0,
        description="maximum seconds without output; then the turn fails. If it is set, also the default of "
        "`idle_timeout` in the tables of model servers",
    )
    total_timeout: float = Field(3600.0, gt=0, description="maximum seconds of a turn; then it fails")
    kept_threads: int = Field(
        32,
        ge=0,
        description="maximum idle agent sessions that are kept for later requests; 0: none, and a process for each "
        "turn of Codex. Claude Code keeps an eighth as many processes, Codex one of each kind per 16 sessions",
    )
    kept_thread_seconds: float = Field(300.0, gt=0, description="seconds that an idle session is kept")
    drain_ms: int = Field(
        10000, ge=0, description="maximum milliseconds for running turns to end when the server stops"
    )

    # Responses, conversations, and where they are kept.
    store: str = Field(
        "sqlite",
        description="where responses and conversations are stored: `sqlite` (`store.sqlite3` in the state folder), the "
        f"path of such a file, `memory`, `off` (nowhere){_SHARED_STORE}",
    )
    store_max_age: float = Field(
        30 * 86400.0, ge=0, description="seconds that a response is kept; 0: no limit"
    )
    store_conversation_max_age: float = Field(
        0.0, ge=0, description="seconds that an unused conversation or record of a part is kept; 0: no limit"
    )
    store_max_bytes: int = Field(4 << 30, ge=0, description="maximum bytes of the store; 0: no limit")
    tool_memory: Literal["disk", "ram", "off"] = Field(
        "disk",
        description="where the model's reasoning and hidden calls between tool calls are kept for a day",
    )
    max_conversation_history: int = from_variables(
        "MAX_CONVERSATION_HISTORY",
        default=100,
        ge=1,
        description=(
            "maximum chains of responses that are stored (on disk no limit, if unset), and tool steps in memory"
        ),
    )
    responses_profile: Literal["openai", "open-responses-server"] = Field(
        "openai", description="form of the events of `/responses`"
    )
    heartbeat_interval: float = from_variables(
        "HEARTBEAT_INTERVAL",
        default=15.0,
        ge=0,
        description="seconds of silence until a keepalive comment is sent in a stream; 0: never",
    )
    background_recovery: Literal["fail", "rerun"] = Field(
        "fail", description="what happens to interrupted background responses after a restart"
    )
    webhooks: WebhookTable = Field(
        WebhookTable(), description="webhooks about background responses and sessions"
    )

    max_tool_call_iterations: int = from_variables(
        "MAX_TOOL_CALL_ITERATIONS",
        default=25,
        ge=1,
        description="maximum steps with MCP tool calls in one request",
    )

    # Instrumentation for tests.
    test_endpoints: bool = Field(False, description="serve `/__test/*` and send the `X-Conc-*` headers")
    stream_release_file: str | None = from_variables(
        "STREAM_RELEASE_FILE",
        default=None,
        description="the fake agent holds its turns until this file exists",
    )

    ui: bool = Field(True, description="serve the page for browsers at `/`")

    # Metrics.
    metrics: bool = Field(False, description="serve `GET /metrics`, for Prometheus")
    metrics_key: SecretStr | None = Field(
        None, description="key for `GET /metrics`; unset: only this machine can read it"
    )

    # Logs.
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest level that is logged"
    )
    log_format: Literal["console", "json"] = Field("console", description="format of the log")
    log_content: bool = Field(False, description="log prompts and answers too, to find faults")

    _file: Path | None = PrivateAttr(default=None)
    _server: CoreSettings | None = PrivateAttr(default=None)
    _unknown_variables: dict[str, str] = PrivateAttr(default={})

    @field_validator("*", mode="before")
    @classmethod
    def _join_list(cls, value: Any, info: ValidationInfo) -> Any:
        return join_list(value, cls.model_fields[info.field_name or ""].description or "")

    @field_validator("fake_dialect", mode="before")
    @classmethod
    def _fake_dialect_is_there(cls, name: Any) -> Any:
        if part := absent_part("fake_dialects", name):
            raise ValueError(f"{name} is a protocol of {absent_part_text(part)}")
        return name

    @field_validator("codex_home", "workdir", "state_dir")
    @classmethod
    def _expand(cls, path: Path) -> Path:
        return path.expanduser().absolute()

    @field_validator("api_key", "metrics_key")
    @classmethod
    def _key_can_be_sent(cls, key: SecretStr | None) -> SecretStr | None:
        if key is None:
            return None
        text = key.get_secret_value().strip()  # the file of a secret ends with a newline
        if not text:
            raise ValueError("a key must not be empty")
        if not (text.isascii() and text.isprintable()):
            raise ValueError("a key has printable ASCII characters only, since clients send it in a header")
        return SecretStr(text)

    @field_validator("model_aliases")
    @classmethod
    def _aliases_have_targets(cls, aliases: str) -> str:
        for alias in split_list(aliases):
            name, _, target = alias.partition("=")
            if not (name.strip() and target.strip()):
                raise ValueError(f"'{alias}' is not NAME=MODEL, like gpt-4o=codex-5")
        return aliases

    @field_validator("store")
    @classmethod
    def _store_is_known(cls, store: str) -> str:
        is_path = "/" in store and ":" not in store.partition("/")[0]
        scheme, is_url, _ = store.partition("://")
        wrong = store_scheme_fault(scheme) if is_url else ""
        if store in ("sqlite", "memory", "off") or is_path or (is_url and not wrong):
            return store
        if wrong and absent_part("stores", scheme):
            raise ValueError(f"{scheme}:// is {wrong}")
        url = f", or a URL ({shared_store()})" if shared_store() else ""
        raise ValueError(f"choose sqlite, the path of a file (with a /), memory, off{url}")

    @model_validator(mode="after")
    def _agent_is_known(self) -> CoreSettings:
        """Checks `agent` when all tables of agents are read, also those of parts."""
        tables = (self.agents, *(getattr(self, name) for name in agent_tables()))
        if any(self.agent in table for table in tables):
            return self
        try:
            check_name(self.agent, self.agent_plugin)
        except ValueError as error:
            found = PydanticCustomError("agent", "{text}", {"text": str(error)})
            details: InitErrorDetails = {"type": found, "loc": ("agent",), "input": self.agent}
            raise ValidationError.from_exception_data("Settings", [details]) from error
        return self

    @property
    def child_env_names(self) -> tuple[str, ...]:
        return split_list(self.child_env)

    @property
    def app_server_processes(self) -> int:
        return min(16, max(1, self.kept_threads // 16))

    @property
    def of_server(self) -> CoreSettings:
        """The settings of the whole server; each of several agents has a copy with the changes of its table."""
        return self._server or self

    @property
    def server_url(self) -> str:
        """The URL, without a path, for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def config_file(self) -> Path:
        """The file that was read, or that would have been."""
        return self._file or default_config_file()

    @property
    def unknown_variables(self) -> dict[str, str]:
        """The variables that begin with `PROXY_` and set nothing, each with a hint at what may be meant."""
        return self._unknown_variables

    @property
    def in_database(self) -> bool:
        """Whether the store is a database, whose URL is `store`."""
        scheme, is_url, _ = self.store.partition("://")
        return bool(is_url) and "/" not in scheme

    @property
    def in_file(self) -> bool:
        return self.store not in ("memory", "off") and not self.in_database

    @property
    def store_file(self) -> Path:
        is_default = self.store == "sqlite" or not self.in_file
        return (self.state_dir / "store.sqlite3" if is_default else Path(self.store)).expanduser().absolute()

    @property
    def uploads_folder(self) -> Path:
        """The folder of uploaded files, beside the store's file; it may not exist."""
        return self.store_file.with_name(f"{self.store_file.name}.files")

    @property
    def keys_path(self) -> Path:
        """The keys file, which may not exist."""
        return (self.keys_file or self.state_dir / "keys.toml").expanduser().absolute()

    @property
    def wants_key(self) -> bool:
        """Whether clients need a key: one is in the settings, or there is a keys file."""
        return self.api_key is not None or self.keys_path.exists()

    @property
    def default_key(self) -> str | None:
        return None if self.api_key is None else self.api_key.get_secret_value()

    @property
    def aliases(self) -> tuple[tuple[str, str], ...]:
        pairs = (each.partition("=") for each in split_list(self.model_aliases))
        return tuple((name.strip(), target.strip()) for name, _, target in pairs)


if TYPE_CHECKING:
    Settings = CoreSettings
else:

    class Settings(*reversed(tuple(declared("settings"))), CoreSettings):
        """The settings of the core, and behind them those of the parts."""


def split_list(text: str, separator: str = ",") -> tuple[str, ...]:
    """Returns the non-empty parts of a setting that is a list."""
    return tuple(part.strip() for part in text.split(separator) if part.strip())
