"""The bodies of Anthropic's Managed Agents API: pydantic models. An unknown field is ignored and named. Raises `Fault`
INVALID_REQUEST. Source: docs/managed-agents.md, Anthropic's own types for the fields.
"""

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field

from codex_proxy.store.values import MAX_METADATA_KEYS
from codex_proxy.surfaces.requests.body import MetadataKey, MetadataValue, Name, RequestModel
from codex_proxy.surfaces.requests.fields import ByKind, Ignored

MAX_SYSTEM: Final = 100_000
MAX_TOOLS: Final = 128
MAX_SERVERS: Final = 20
MAX_ROSTER: Final = 20

ObjectName: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]
Description: TypeAlias = Annotated[str, Field(max_length=2048)]
Key: TypeAlias = Annotated[MetadataKey, Field(min_length=1)]
Metadata: TypeAlias = Annotated[dict[Key, MetadataValue], Field(max_length=MAX_METADATA_KEYS)]
MetadataPatch: TypeAlias = Annotated[dict[Key, MetadataValue | None], Field(max_length=2 * MAX_METADATA_KEYS)]
"""Metadata in an update: null deletes a key."""


# --- environments -------------------------------------------------------------------------------


class UnrestrictedNetwork(RequestModel):
    type: Literal["unrestricted"]


class LimitedNetwork(RequestModel, extra="allow"):
    """A fence around a session, which is refused."""

    type: Literal["limited"]


PackageNames: TypeAlias = Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=1000)]


class Packages(RequestModel):
    """Packages to install, which are refused."""

    type: Literal["packages"] = "packages"
    apt: PackageNames | None = None
    cargo: PackageNames | None = None
    gem: PackageNames | None = None
    go: PackageNames | None = None
    npm: PackageNames | None = None
    pip: PackageNames | None = None

    @property
    def has_any(self) -> bool:
        return any((self.apt, self.cargo, self.gem, self.go, self.npm, self.pip))


class CloudConfig(RequestModel):
    type: Literal["cloud"]
    networking: Annotated[UnrestrictedNetwork | LimitedNetwork, ByKind()] | None = None
    packages: Packages | None = None


class SelfHostedConfig(RequestModel, extra="allow"):
    """An environment whose tools run elsewhere, which is refused."""

    type: Literal["self_hosted"]


EnvironmentConfig: TypeAlias = CloudConfig | SelfHostedConfig
Scope: TypeAlias = Literal["organization", "account"]


class EnvironmentFields(RequestModel, extra="allow"):
    config: Annotated[EnvironmentConfig, ByKind()] | None = None
    description: Description | None = None
    scope: Annotated[Scope | None, Ignored()] = None


class EnvironmentUpdate(EnvironmentFields):
    """The body of `POST /v1/environments/{id}`."""

    name: ObjectName | None = None
    metadata: MetadataPatch | None = None


class EnvironmentBody(EnvironmentFields):
    """The body of `POST /v1/environments`."""

    name: ObjectName
    metadata: Metadata | None = None


# --- agents: the model --------------------------------------------------------------------------

EffortLevel: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]


class EffortObject(RequestModel):
    type: EffortLevel


class ModelConfig(RequestModel):
    id: Annotated[str, Field(min_length=1, max_length=256)]
    effort: Annotated[EffortLevel | EffortObject, ByKind()] | None = None
    speed: Literal["standard", "fast"] | None = None
    inference_geo: Annotated[str | None, Ignored("model")] = None


Model: TypeAlias = Annotated[
    Annotated[str, Field(min_length=1, max_length=256)] | ModelConfig,
    ByKind(),
]

# --- agents: their tools ------------------------------------------------------------------------

ToolName: TypeAlias = Literal["bash", "edit", "read", "write", "glob", "grep", "web_fetch", "web_search"]
"""The tools of the toolset."""


class Policy(RequestModel):
    type: Literal["always_allow", "always_ask", "auto"]


class ToolSettings(RequestModel):
    """Settings of a tool, or of all that have none of their own."""

    enabled: bool | None = None
    permission_policy: Policy | None = None


class OwnToolSettings(ToolSettings):
    """Settings of a tool of the toolset. Those that would limit it to some sites are refused."""

    name: ToolName
    type: ToolName | None = None
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    url_sources: Any = None
    user_location: Annotated[Any, Ignored("tools[].configs[]")] = None
    max_content_tokens: Annotated[int | None, Ignored("tools[].configs[]")] = None


class AgentToolset(RequestModel):
    """The agent's own tools."""

    type: Literal["agent_toolset_20260401"]
    default_config: ToolSettings | None = None
    configs: Annotated[list[OwnToolSettings], Field(max_length=8)] | None = None


class McpToolSettings(ToolSettings):
    name: Annotated[str, Field(min_length=1, max_length=128)]


class McpToolset(RequestModel):
    """The tools of an MCP server."""

    type: Literal["mcp_toolset"]
    mcp_server_name: Annotated[str, Field(min_length=1, max_length=128)]
    default_config: ToolSettings | None = None
    configs: Annotated[list[McpToolSettings], Field(max_length=256)] | None = None


class InputSchema(RequestModel, extra="allow"):
    type: Literal["object"]


class CustomTool(RequestModel):
    """A function that the client runs."""

    type: Literal["custom"]
    name: Name
    description: Annotated[str, Field(max_length=100_000)]
    input_schema: InputSchema


Tool: TypeAlias = Annotated[AgentToolset | McpToolset | CustomTool, ByKind()]
Tools: TypeAlias = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]


class McpServer(RequestModel):
    type: Literal["url"]
    name: Annotated[str, Field(min_length=1, max_length=128)]
    url: Annotated[str, Field(min_length=1, max_length=2048)]


McpServers: TypeAlias = Annotated[list[McpServer], Field(max_length=MAX_SERVERS)]

# --- agents: others, and themselves -------------------------------------------------------------


class SelfEntry(RequestModel):
    """The agent itself as its subagent."""

    type: Literal["self"]


class OtherEntry(RequestModel, extra="allow"):
    """Another agent as a subagent, which is refused."""

    type: str


RosterEntry: TypeAlias = Annotated[str | SelfEntry | OtherEntry, ByKind()]


class Coordinator(RequestModel):
    type: Literal["coordinator"]
    agents: Annotated[list[RosterEntry], Field(min_length=1, max_length=MAX_ROSTER)]


class OtherMultiagent(RequestModel, extra="allow"):
    """Ways of working together that are refused."""

    type: str


class ExecutionIdentity(RequestModel):
    type: str


class AgentFields(RequestModel, extra="allow"):
    model: Model | None = None
    name: ObjectName | None = None
    description: Description | None = None
    system: Annotated[str, Field(max_length=MAX_SYSTEM)] | None = None
    tools: Tools | None = None
    mcp_servers: McpServers | None = None
    skills: list[Any] | None = None
    multiagent: Annotated[Coordinator | OtherMultiagent, ByKind()] | None = None
    execution_identity: ExecutionIdentity | None = None


class ManagedAgentUpdate(AgentFields):
    """The body of `POST /v1/agents/{id}`."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    metadata: MetadataPatch | None = None


class ManagedAgentBody(AgentFields):
    """The body of `POST /v1/agents`."""

    model: Model
    name: ObjectName
    metadata: Metadata | None = None
