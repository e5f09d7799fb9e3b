"""Responses items as a client's history has them."""

from __future__ import annotations

from typing import Any


def user(text: str) -> dict[str, Any]:
    return _message("user", "input_text", text)


def developer(text: str) -> dict[str, Any]:
    return _message("developer", "input_text", text)


def assistant(text: str) -> dict[str, Any]:
    return _message("assistant", "output_text", text)


def _message(role: str, kind: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
