"""The settings of recording and replaying, and the server's settings on which an answer depends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field

from codex_proxy.core.faults import UserError
from codex_proxy.parts import own_settings

RELEVANT_SETTINGS: Final = (
    *("env", "model_aliases", "codex_model", "max_chat_choices", "choices", "builtin_tools", "chat_profile"),
    *("structured_output", "logprobs", "reasoning_state", "show_activity", "web_search", "responses_profile"),
    *("enable_parallel_tool_calls", "max_tool_call_iterations", "max_output_size", "stream_metrics"),
)
"""The settings on which reading a request and writing its answer depend."""


class CassetteError(UserError):
    """Cassettes cannot be recorded or read. The text names file and line, and what to do."""


class CassetteTable(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """`[cassettes]`: recording and replaying. With both, the agent answers what no cassette does, and
    is recorded.
    """

    record: Path | None = Field(None, description="folder in which each turn is recorded as a cassette")
    replay: Path | None = Field(
        None,
        description="folder of cassettes that answer instead of the agent; with `record`, it answers what they do not",
    )
    match: str = Field(
        "",
        description="properties by which a request finds its cassette (default: `messages,tools,format,mode`)",
    )
    pace: str = Field("none", description="speed of the replay: `none` (at once), `recorded`, or a factor")
    scrub: str = Field(
        "",
        description="regular expression of text that is left out of cassettes, besides keys, folders and names",
    )
    files: bool = Field(
        True,
        description="whether what agents do to the files of their folders is recorded, and done again by a replay",
    )


class CassettesSettings(BaseModel, defer_build=True):
    cassettes: CassetteTable = Field(CassetteTable(), description="recording and replaying")


def table_of(settings: object) -> CassetteTable:
    return own_settings(settings, CassettesSettings).cassettes


def chosen_agent(settings: object) -> str:
    """Names the `AgentSpec` of the agent that replays, if the server does."""
    return "" if table_of(settings).replay is None else "codex_proxy.parts.cassettes.serving:SPEC"


def settings_that_matter(settings: Any) -> dict[str, Any]:
    """Returns a server's settings that matter and are no defaults, as JSON."""
    fields = type(settings).model_fields
    found = {name: getattr(settings, name) for name in RELEVANT_SETTINGS if name in fields}
    return {name: value for name, value in found.items() if value != fields[name].default}


def with_recorded_settings(settings: Any, recorded: Mapping[str, Any]) -> Any:
    """Returns the settings with the recorded ones, except those that the operator has set."""
    own = settings.model_fields_set
    update = {
        name: value for name, value in recorded.items() if name in RELEVANT_SETTINGS and name not in own
    }
    return settings.model_copy(update=update)
