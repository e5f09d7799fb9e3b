"""The other forms of a request, for an upstream that refuses one of what was sent: which there are follows from the
request, not from the words of the refusal. A form is a name (`stream_options`, `system_messages`); the bodies of an API
say what it changes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from codex_proxy.core.options import OPTIONS
from codex_proxy.core.turn import Turn

Forms: TypeAlias = frozenset[str]

TOOL_SCHEMAS: Final = "tool_schemas"
"""The parameters of tools in the form that every provider takes."""
JSON_SCHEMA: Final = "json_schema"
"""The schema of the answer, which is said in words where an upstream refuses it."""
ALTERNATING: Final = "alternating_roles"
"""No two messages of the user in a row."""
SYSTEM_ROLE: Final = "system_role"
"""Instructions as messages of the user. They weigh less there, so it is the last form, where little else is left."""
NAMED_TOOL: Final = "named_tool"
"""`required` in place of a tool's name, which is the only one."""
OPTION_FORMS: Final = tuple(option.chat_body for option in OPTIONS if option.chat_body)
"""Options of the request, which are left out."""
_WITHOUT_LOSS: Final = frozenset(
    {NAMED_TOOL, "max_tokens", "stream_options", "include", "store", "developer_role", "parts"}
)
"""Forms of higher ranks that change nothing of an answer."""
REMEMBERED_SECONDS: Final = 3600.0
"""How long an upstream gets a request's other form at once, after it took it."""
MAX_REMEMBERED: Final = 1000
"""Maximum clients and models whose forms are remembered."""


MAX_ITEMS: Final = 2000
"""The most items of a conversation that is sent in another form: to find the forms, it is written some ten times."""


def option_fields(turn: Turn, body: Literal["chat", "responses"], refused: Forms) -> dict[str, Any]:
    """Returns the fields of a body that have values of the turn as they are."""
    values, fields = msgspec.structs.asdict(turn), dict[str, Any]()
    for option in OPTIONS:
        path = option.chat_body if body == "chat" else option.responses_body
        value = values[option.field]
        if path and value is not None and value not in option.harmless and option.chat_body not in refused:
            outer, _, name = path.rpartition(".")
            (fields.setdefault(outer, {}) if outer else fields)[name] = value
    return fields


def tries_of(
    fields_of: Callable[[Forms], Any], ranks: Mapping[str, int], used: Forms, *, items: int
) -> list[Forms]:
    """Returns the forms in which a refused request is sent again, at most two tries: first with those of the lowest
    rank that change the request, then with all; none for a request of more than `MAX_ITEMS` `items`. `fields_of`
    returns the request in given forms, to compare; `used`: the forms that it was sent in.
    """
    if items > MAX_ITEMS:
        return []
    changing = _changing(fields_of, ranks, used)
    if not changing:
        return []
    milder = changing - {SYSTEM_ROLE} or changing
    lowest = min(ranks[form] for form in milder)
    first = used | {form for form in milder if ranks[form] == lowest}
    is_rest = all(ranks[form] == 0 or form in _WITHOUT_LOSS for form in milder)
    last = used | (changing if is_rest else milder)
    if JSON_SCHEMA in changing:  # in words it is one more system message
        last |= _changing(fields_of, ranks, last) - {SYSTEM_ROLE}
    return list(dict.fromkeys(forms | _following(fields_of, ranks, forms) for forms in (first, last)))


def _following(fields_of: Callable[[Forms], Any], ranks: Mapping[str, int], forms: Forms) -> Forms:
    """Returns the form that is needed where other forms have put messages of the user side by side."""
    if ALTERNATING not in ranks or ALTERNATING in forms:
        return frozenset()
    following = frozenset({ALTERNATING})
    return following if fields_of(forms | following) != fields_of(forms) else frozenset()


def _changing(fields_of: Callable[[Forms], Any], ranks: Mapping[str, int], used: Forms) -> Forms:
    sent = fields_of(used)
    return frozenset(form for form in ranks.keys() - used if fields_of(used | {form}) != sent)


class RememberedForms:
    """The forms that an upstream took after it had refused others, by client and model: one client's wrong value must
    not change what another one sends.
    """

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], tuple[Forms, float]] = {}

    def of(self, owner: str, model: str, now: float) -> Forms:
        """Returns the forms to begin with. `now`: seconds of any clock that runs on."""
        forms, until = self._taken.get((owner, model), (frozenset(), 0.0))
        return forms if now < until else frozenset()

    def remember(self, owner: str, model: str, forms: Forms, now: float) -> None:
        self._taken.pop((owner, model), None)
        self._taken[owner, model] = (forms, now + REMEMBERED_SECONDS)
        if len(self._taken) > MAX_REMEMBERED:
            del self._taken[next(iter(self._taken))]
