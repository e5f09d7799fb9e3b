"""A fake `codex proto`: prompts in, events out."""

from __future__ import annotations

from typing import Any

from tests.fake.child import Child, Message


def proto(*arguments: str, **env: str) -> Child:
    """A child that speaks proto; keywords are its FAKE_CODEX_ variables."""
    return Child("proto", *arguments, env={f"FAKE_CODEX_{key}": value for key, value in env.items()})


def user_input(text: str, submission: str = "1") -> Message:
    """The submission of a prompt."""
    return {"id": submission, "op": {"type": "user_input", "items": [{"type": "text", "text": text}]}}


def is_over(event: Message) -> bool:
    """Whether a task ended with this event."""
    return event["msg"]["type"] in ("task_complete", "turn_aborted")


def ask(child: Child, text: str, submission: str = "1") -> list[Any]:
    """The messages (`msg`) of the task that a prompt starts, the session's first line left out."""
    child.send(user_input(text, submission))
    messages = [event["msg"] for event in child.read_until(is_over)]
    return [message for message in messages if message["type"] != "session_configured"]


def texts(messages: list[Any], kind: str, field: str) -> list[str]:
    """One field of the messages of one type."""
    return [message[field] for message in messages if message["type"] == kind]
