"""The arguments of the tools. Each class is one tool: its docstring is the description that the model reads, and its
fields are the arguments.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from codex_proxy.core.turn import Sandbox

MAX_PROMPT: Final = 1_000_000
"""Maximum characters of a prompt."""
MAX_LISTED: Final = 50
"""Maximum sessions of a list, and items of a page."""

Name = Annotated[str, Field(max_length=300)]
SessionId = Annotated[str, Field(max_length=100, description="The id that start_session returned.")]
Prompt = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]


class ToolArguments(BaseModel, defer_build=True):
    model_config = ConfigDict(extra="forbid")


class StartSession(ToolArguments):
    """Start a coding agent on a task. It works on its own and in the background: the answer is the id of its session.
    Then call wait_session until it has finished."""

    prompt: Prompt = Field(description="The task, with everything that the agent has to know.")
    agent: Name | None = Field(None, description="An agent of list_agents; the default one if left out.")
    model: Name | None = Field(None, description="A model of list_agents; the agent's default if left out.")
    folder: str | None = Field(
        None, max_length=4096, description="The absolute path of the folder in which the agent works."
    )
    sandbox: Sandbox | None = Field(
        None,
        description="What the agent's commands may do: at most what this server allows, which is also the default.",
    )
    title: Name | None = Field(None, description="A short title for the list of sessions.")


class ContinueSession(ToolArguments):
    """Send a further message to a session. While its agent works, the message steers it; else it begins a new turn.
    Then call wait_session."""

    session_id: SessionId
    prompt: Prompt


class WaitSession(ToolArguments):
    """Wait until the agent of a session has finished, or a person has to decide something; for at most 50 seconds. If
    the answer's `state` is `working`, call it again."""

    session_id: SessionId


class ReadSession(ToolArguments):
    """Read what was said and done in a session: messages, commands with their output, changes of files. Without
    `after`: the newest items."""

    session_id: SessionId
    after: str | None = Field(None, max_length=200, description="Read the items behind the one with this id.")


class ListSessions(ToolArguments):
    """List sessions with their state: the one that was active last comes first."""

    search: str = Field("", max_length=200, description="Only those whose title or messages have this text.")
    limit: int = Field(20, ge=1, le=MAX_LISTED)


class StopSession(ToolArguments):
    """Stop the agent of a session. What it has done stays, and the session can be continued."""

    session_id: SessionId


class ListAgents(ToolArguments):
    """List the agents that can be started, with their models."""


TOOLS: Final[dict[str, type[ToolArguments]]] = {
    "start_session": StartSession,
    "continue_session": ContinueSession,
    "wait_session": WaitSession,
    "read_session": ReadSession,
    "list_sessions": ListSessions,
    "stop_session": StopSession,
    "list_agents": ListAgents,
}
READ_ONLY: Final = frozenset({"wait_session", "read_session", "list_sessions", "list_agents"})
"""The tools that change nothing."""
STARTING: Final = frozenset({"start_session", "continue_session"})
"""The tools that let an agent work, whose commands may reach other machines: clients ask their person before."""
