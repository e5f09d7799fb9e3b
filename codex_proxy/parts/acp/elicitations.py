"""What programs of ACP ask their user for: `elicitation/create`, a form or a page to open, as a question to the client.
Source: npm @agentclientprotocol/sdk 2.4.0 `schema/v1/schema.json`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import Decision
from codex_proxy.agents.shared.forms import (
    ASK_USER,
    MAX_ASKED,
    OPEN_URL,
    FormError,
    read_form,
    read_message,
    read_url,
)
from codex_proxy.core.events import ApprovalRequested
from codex_proxy.core.items import ActionDetails
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.shown_text import one_line
from codex_proxy.parts.acp.messages import Params

ELICITATION: Final = "elicitation/create"
FORM: Final = object()
"""In place of the options of a request for permission."""
MAX_OPEN: Final = 5
"""How many forms of one turn are open at most: with each one, all of them are stored again."""
FORM_CANCELLED: Final = {"action": "cancel"}
"""The answer in a turn that is being stopped."""


def form_of(request_id: str, params: Params) -> ApprovalRequested:
    """Returns the question of a request. Raises `FormError` for one that no user is shown."""
    message = read_message(params.message)
    if params.mode == "form":
        fields = read_form(params.requested_schema)
        tool, asked = ASK_USER, {"message": message, "fields": msgspec.to_builtins(fields)}
    elif params.mode == "url":
        tool, asked = OPEN_URL, {"message": message, "url": read_url(params.url)}
    else:
        raise FormError("the form is of no known kind")
    arguments = encode_json(asked)
    if len(arguments) > MAX_ASKED:
        raise FormError(f"the form has more than {MAX_ASKED} bytes")
    details = ActionDetails(tool=tool, arguments=arguments.decode())
    return ApprovalRequested(request_id, "form", one_line(message), details)


def form_answer(reply: Decision) -> dict[str, Any]:
    """Returns the answer to a request."""
    if not reply.approve:
        return {"action": "decline"}
    return {"action": "accept", "content": reply.content}
