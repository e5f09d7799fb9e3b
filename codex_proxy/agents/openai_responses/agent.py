"""The agent that sends its turns to a server of the Responses API, over the same connections as `openai-chat`."""

from __future__ import annotations

import uuid

from codex_proxy.agents.base import Dialect
from codex_proxy.agents.openai_chat.agent import OpenAIChatAgent
from codex_proxy.agents.openai_chat.stream import Message
from codex_proxy.agents.openai_chat.upstream import RESPONSES
from codex_proxy.agents.openai_responses.dialect import OpenAIResponses
from codex_proxy.core.turn import Turn


class OpenAIResponsesAgent(OpenAIChatAgent):
    """An `OpenAIChatAgent` with the dialect of the Responses API."""

    name = RESPONSES.agent

    def _dialect(self, turn: Turn, model: str) -> Dialect[Message]:
        return OpenAIResponses(
            model,
            errors=self._errors,
            refused=self._refused,
            new_id=lambda prefix: prefix + uuid.uuid4().hex,
            now=self._clock.epoch,
        )
