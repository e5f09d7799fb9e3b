"""The bodies of sessions of the Managed Agents API: pydantic models. An unknown field is ignored and named; what is not
served is refused with a sentence. Source: docs/managed-agents.md, Anthropic's own types for the fields.
"""

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field

from codex_proxy.parts.managed_agents import wire
from codex_proxy.surfaces.requests.body import RequestModel
from codex_proxy.surfaces.requests.fields import ByKind
from codex_proxy.surfaces.responses.item_wire import TEXT_LIMIT

MAX_EVENTS: Final = 1000
MAX_INITIAL: Final = 50
MAX_DENIAL: Final = 100_000
"""Characters of the words of a denial."""

Id: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]
Text: TypeAlias = Annotated[str, Field(max_length=TEXT_LIMIT)]

# --- content blocks -----------------------------------------------------------------------------


class Base64Source(RequestModel):
    type: Literal["base64"]
    media_type: Annotated[str, Field(max_length=128)]
    data: str


class UrlSource(RequestModel):
    type: Literal["url"]
    url: Annotated[str, Field(min_length=1)]


class TextSource(RequestModel):
    type: Literal["text"]
    data: Text
    media_type: str | None = None


class FileSource(RequestModel):
    type: Literal["file"]
    file_id: Id


class TextBlock(RequestModel):
    type: Literal["text"]
    text: Annotated[Text, Field(min_length=1)]


class ImageBlock(RequestModel):
    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource | FileSource, ByKind()]


class DocumentBlock(RequestModel):
    type: Literal["document"]
    source: Annotated[Base64Source | UrlSource | TextSource | FileSource, ByKind()]
    title: Text | None = None
    context: Text | None = None


class SearchResultBlock(RequestModel):
    type: Literal["search_result"]
    source: Text
    title: Text
    content: Annotated[list[TextBlock], Field(max_length=1000)]


class RedactedBlock(RequestModel, extra="allow"):
    """A block without content, which is refused."""

    type: Literal["redacted"]


MessageBlock: TypeAlias = Annotated[TextBlock | ImageBlock | DocumentBlock | RedactedBlock, ByKind()]
ResultBlock: TypeAlias = Annotated[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock, ByKind()]

# --- events of a client -------------------------------------------------------------------------


class MessageEvent(RequestModel):
    type: Literal["user.message"]
    content: Annotated[list[MessageBlock], Field(min_length=1, max_length=1000)]


class InterruptEvent(RequestModel):
    type: Literal["user.interrupt"]
    session_thread_id: Id | None = None


class ConfirmationEvent(RequestModel):
    type: Literal["user.tool_confirmation"]
    tool_use_id: Id
    result: Literal["allow", "deny"]
    deny_message: Annotated[str, Field(max_length=MAX_DENIAL)] | None = None


class CustomResultEvent(RequestModel):
    type: Literal["user.custom_tool_result"]
    custom_tool_use_id: Id
    content: Annotated[list[ResultBlock], Field(max_length=1000)] | None = None
    is_error: bool | None = None


class UnservedEvent(RequestModel, extra="allow"):
    """An event that is refused."""

    type: Literal["user.define_outcome", "user.tool_result", "system.message"]


InputEvent: TypeAlias = Annotated[
    MessageEvent | InterruptEvent | ConfirmationEvent | CustomResultEvent | UnservedEvent, ByKind()
]


class ManagedEventsBody(RequestModel, extra="allow"):
    """The body of `POST /v1/sessions/{id}/events`."""

    events: Annotated[list[InputEvent], Field(max_length=MAX_EVENTS)]


# --- a session ----------------------------------------------------------------------------------


class AgentReference(RequestModel):
    type: Literal["agent"]
    id: Id
    version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


class AgentWithOverrides(wire.AgentFields):
    """An agent with other settings in this session."""

    type: Literal["agent_with_overrides"]
    id: Id
    version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


class Resource(RequestModel, extra="allow"):
    """What is put into a session's folder: a file. Other types are refused."""

    type: Annotated[str, Field(max_length=64)]
    file_id: Id | None = None
    mount_path: Annotated[str, Field(min_length=1, max_length=512)] | None = None


Title: TypeAlias = Annotated[str, Field(max_length=1000)]


class ManagedSessionBody(RequestModel, extra="allow"):
    """The body of `POST /v1/sessions`."""

    agent: Annotated[Id | AgentReference | AgentWithOverrides, ByKind()]
    environment_id: Id
    title: Title | None = None
    metadata: wire.Metadata | None = None
    initial_events: Annotated[list[InputEvent], Field(max_length=MAX_INITIAL)] | None = None
    resources: Annotated[list[Resource], Field(max_length=1000)] | None = None
    vault_ids: list[str] | None = None
    budget: Any = None


class ManagedSessionUpdate(RequestModel, extra="allow"):
    """The body of `POST /v1/sessions/{id}`."""

    title: Title | None = None
    metadata: wire.MetadataPatch | None = None
    agent: wire.AgentFields | None = None
    vault_ids: list[str] | None = None
    budget: Any = None
