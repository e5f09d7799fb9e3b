"""What this server needs of the protocol of `codex app-server`, compared with the binary's schema.

`ContractCheck` names what is missing. The binary must require only fields that we send. Source: the schemas of releases
0.144 to 0.169.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from codex_proxy.core.json_values import UNREADABLE, text_at, value_at
from codex_proxy.core.options import Capability

MessageKind = Literal["request", "answer", "notification", "question", "reply"]
"""`request` and its result, `answer`, are of our requests; `question` and our result, `reply`, of the agent's."""

LISTS: Final[Mapping[MessageKind, str]] = {
    "request": "ClientRequest",
    "answer": "ClientRequest",
    "notification": "ServerNotification",
    "question": "ServerRequest",
    "reply": "ServerRequest",
}

DEFINITIONS: Final[Mapping[str, str]] = {
    "rawResponseItem/completed": "RawResponseItemCompletedNotification",
    "rawResponse/completed": "RawResponseCompletedNotification",
    "account/read": "GetAccountResponse",
}
"""Definitions of messages that the schema's lists of methods lack, or do not name after the request."""


class SchemaError(ValueError):
    """A text is no JSON Schema of an app-server."""


class ProtocolSchema:
    """A binary's JSON Schema. A *node* is the schema of one value."""

    def __init__(self, text: bytes) -> None:
        try:
            self._document = msgspec.json.decode(text)
        except UNREADABLE as error:
            raise SchemaError(f"it is not JSON: {error}") from error
        self._lists = {name: self._methods(name) for name in LISTS.values()}

    def _methods(self, name: str) -> dict[str, Any]:
        variants = value_at(self._resolve(f"#/definitions/{name}"), "oneOf")
        if not isinstance(variants, list):
            raise SchemaError(f"it has no list {name}")
        methods = {}
        for each in variants:
            properties = each.get("properties", {}) if isinstance(each, dict) else {}
            for method in properties.get("method", {}).get("enum", ()):
                methods[method] = properties.get("params", True)
        return methods

    def _resolve(self, reference: str) -> Any:
        return value_at(self._document, *reference.removeprefix("#/").split("/"))

    def message(self, kind: MessageKind, method: str) -> Any:
        """Returns the node of a message's parameters or result, if any."""
        listed = self._lists[LISTS[kind]].get(method)
        if kind in ("answer", "reply") and listed is not None:
            reference = text_at(listed, "$ref")
            return self._definition_of(method) or self._resolve(reference.removesuffix("Params") + "Response")
        return self._definition_of(method) if listed is None and kind == "notification" else listed

    def _definition_of(self, method: str) -> Any:
        name = DEFINITIONS.get(method, "")
        return self._resolve(f"#/definitions/v2/{name}") or self._resolve(f"#/definitions/{name}")

    def at(self, node: Any, path: str) -> list[Any]:
        """Returns the nodes at a clause's path below a node; several for alternatives."""
        found = [node]
        for step in path.split("."):
            step, _, tag = step.rstrip(">").partition("<")
            name = step.removesuffix("[]")
            found = self._children(found, "properties", name)
            if name != step:
                found = self._children(found, "items")
            if tag:
                found = [inner for each in found for inner in self._variants(each, tag)]
        return found

    def _children(self, found: list[Any], *names: str) -> list[Any]:
        parts = (value_at(inner, *names) for each in found for inner in self.nodes(each))
        return [each for each in parts if each is not None]

    def nodes(self, node: Any, seen: frozenset[str] = frozenset()) -> Iterator[dict[str, Any]]:
        """Yields a node and its alternatives; `seen` ends cycles."""
        if not isinstance(node, dict):
            return
        reference = node.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            yield from self.nodes(self._resolve(reference), seen | {reference})
        yield node
        for key in ("allOf", "anyOf", "oneOf"):
            for each in node.get(key) or ():
                yield from self.nodes(each, seen)

    def _variants(self, node: Any, tag: str) -> Iterator[dict[str, Any]]:
        for each in self.nodes(node):
            if tag in (value_at(each, "properties", "type", "enum") or ()):
                yield each


Feature = (
    Capability
    | Literal[
        "effort",
        "reasoning",
        "usage",
        "activity",
        "account_limits",
        "confined_reads",
        "command_clean_up",
        "imported_turns",
    ]
)
"""What a binary may lack while turns still work (docs/agents.md#features-that-can-be-off)."""


class Clause(NamedTuple):
    """Fields that a message must have: `PATH: TYPE, ...`, each a path (`turn.id`; `input[].text` for elements;
    `item<reasoning>.summary` for the variant of that `type`) with a JSON type, a value of an enumeration in quotes, or
    `any`. Only the `feature` needs them; None: every turn.
    """

    kind: MessageKind
    method: str
    needed: str
    feature: Feature | None = None

    @property
    def fields(self) -> dict[str, str]:
        """Each path with its type."""
        return dict(each.split(": ") for each in self.needed.split(", ") if each)


CAPABILITIES: Final[frozenset[Capability]] = frozenset({
    "history", "client_tools", "tool_replies", "structured_output",
    "images", "plain_model", "web_search", "effort", "verbosity", "service_tier",
    "system_prompt", "sandbox", "exact_usage", "stop_reasons", "parallel_calls", "model_choice",
    "stored_sessions", "steering", "subagents",
})  # fmt: skip

ANY: Final = "any"

CONTRACT: Final = (
    # --- a process -------------------------------------------------------------------------------
    Clause(
        "request",
        "initialize",
        "clientInfo.name: string, clientInfo.version: string, capabilities.experimentalApi: boolean",
    ),
    Clause("answer", "initialize", "userAgent: string"),
    Clause("request", "account/read", ""),
    Clause("answer", "account/read", "account: object, requiresOpenaiAuth: boolean"),
    Clause("request", "account/rateLimits/read", "", "account_limits"),
    Clause("notification", "account/rateLimits/updated", "rateLimits: object", "account_limits"),
    # --- a thread --------------------------------------------------------------------------------
    Clause(
        "request",
        "thread/start",
        'cwd: string, ephemeral: boolean, approvalPolicy: "never", sandbox: "read-only", model: string',
    ),
    Clause("answer", "thread/start", "thread.id: string, model: string"),
    Clause("request", "thread/start", "environments: array, baseInstructions: string", "plain_model"),
    Clause("request", "thread/start", "config: object", "verbosity"),
    Clause("request", "thread/start", "config: object", "web_search"),
    Clause("request", "thread/start", "permissions: string", "confined_reads"),
    Clause("request", "thread/inject_items", "threadId: string, items: array"),
    Clause("request", "thread/unsubscribe", "threadId: string"),
    Clause("request", "thread/backgroundTerminals/clean", "threadId: string", "command_clean_up"),
    Clause(
        "request",
        "thread/resume",
        "threadId: string, excludeTurns: boolean, cwd: string, "
        'approvalPolicy: "never", sandbox: "read-only", model: string, config: object',
        "stored_sessions",
    ),
    Clause("answer", "thread/resume", "thread.id: string", "stored_sessions"),
    Clause("request", "thread/resume", "permissions: string", "stored_sessions"),
    Clause("request", "thread/delete", "threadId: string", "stored_sessions"),
    Clause("request", "turn/start", "clientUserMessageId: string", "imported_turns"),
    Clause("answer", "thread/resume", "thread.path: string", "imported_turns"),
    Clause("request", "thread/turns/list", "threadId: string, limit: integer", "imported_turns"),
    Clause(
        "answer",
        "thread/turns/list",
        'data[].id: string, data[].status: "completed", data[].items[]<userMessage>.clientId: string',
        "imported_turns",
    ),
    Clause(
        "request",
        "thread/items/list",
        "threadId: string, turnId: string, limit: integer, cursor: any",
        "imported_turns",
    ),
    Clause("answer", "thread/items/list", "data[].item: any, nextCursor: string", "imported_turns"),
    # --- a turn ----------------------------------------------------------------------------------
    Clause("request", "turn/start", "threadId: string, input[]<text>.text: string"),
    Clause("answer", "turn/start", "turn.id: string"),
    Clause("request", "turn/start", "input[]<image>.url: string", "images"),
    Clause("request", "turn/start", "outputSchema: any", "structured_output"),
    Clause("request", "turn/start", "effort: string, summary: string", "effort"),
    Clause("request", "turn/start", "serviceTier: string", "service_tier"),
    Clause(
        "request",
        "turn/steer",
        "threadId: string, expectedTurnId: string, clientUserMessageId: string, input[]<text>.text: string",
        "steering",
    ),
    Clause("notification", "item/started", "item<userMessage>.clientId: string", "steering"),
    Clause("request", "turn/interrupt", "threadId: string, turnId: string"),
    Clause(
        "notification",
        "turn/completed",
        'threadId: string, turn.id: string, turn.status: "completed", turn.error.message: string',
    ),
    Clause("notification", "error", "threadId: string, error.message: string, willRetry: boolean"),
    # --- what the model says ---------------------------------------------------------------------
    Clause("notification", "item/agentMessage/delta", "threadId: string, itemId: string, delta: string"),
    Clause(
        "notification",
        "item/started",
        "threadId: string, item<agentMessage>.id: string, item<agentMessage>.text: string",
    ),
    Clause(
        "notification",
        "item/completed",
        "threadId: string, item<agentMessage>.id: string, item<agentMessage>.text: string",
    ),
    Clause(
        "notification",
        "item/reasoning/summaryTextDelta",
        "itemId: string, delta: string, summaryIndex: integer",
        "reasoning",
    ),
    Clause("notification", "item/completed", "item<reasoning>.summary: array", "reasoning"),
    Clause(
        "notification",
        "thread/tokenUsage/updated",
        "tokenUsage.total.inputTokens: integer, tokenUsage.total.cachedInputTokens: integer, "
        "tokenUsage.total.outputTokens: integer, tokenUsage.total.reasoningOutputTokens: integer",
        "usage",
    ),
    # --- the client's tools ----------------------------------------------------------------------
    Clause(
        "request",
        "thread/start",
        "dynamicTools[].name: string, dynamicTools[].description: string, dynamicTools[].inputSchema: any",
        "client_tools",
    ),
    Clause("request", "thread/start", "experimentalRawEvents: boolean", "client_tools"),
    Clause(
        "notification",
        "rawResponseItem/completed",
        "turnId: string, item<function_call>.name: string, item<function_call>.arguments: string, "
        "item<function_call>.call_id: string",
        "client_tools",
    ),
    Clause(
        "question",
        "item/tool/call",
        "threadId: string, callId: string, tool: string, arguments: any",
        "client_tools",
    ),
    Clause(
        "reply",
        "item/tool/call",
        "contentItems[]<inputText>.text: string, success: boolean",
        "client_tools",
    ),
    Clause("notification", "rawResponse/completed", "turnId: string, usage: object", "parallel_calls"),
    # --- what the agent does ---------------------------------------------------------------------
    Clause(
        "notification",
        "item/started",
        "item<commandExecution>.command: string, item<fileChange>.changes[].path: string, "
        "item<mcpToolCall>.server: string, item<mcpToolCall>.tool: string, "
        "item<webSearch>.query: string",
        "activity",
    ),
)

NEEDED_BY: Final[Mapping[Feature, tuple[Feature, ...]]] = {
    "client_tools": ("tool_replies", "parallel_calls"),
    "usage": ("exact_usage",),
}


class Missing(msgspec.Struct, frozen=True):
    """A field (`turn/start.outputSchema`) or message that the binary lacks."""

    name: str
    feature: Feature | None
    """What is off without the field. None: no turn is possible."""


class ContractCheck(msgspec.Struct, frozen=True):
    missing: tuple[Missing, ...] = ()

    @property
    def needed(self) -> tuple[str, ...]:
        """The missing fields that every turn needs."""
        return tuple(each.name for each in self.missing if each.feature is None)

    @property
    def refusal(self) -> str | None:
        """Why the binary cannot be used, as the end of a sentence; else None."""
        if not self.needed:
            return None
        return (
            f"cannot be used with codex-app-server, which needs {', '.join(self.needed)}. "
            "Install another release of Codex or update codex-proxy."
        )

    @property
    def missing_features(self) -> dict[str, tuple[str, ...]]:
        missing_features: dict[str, tuple[str, ...]] = {}
        for each in self.missing:
            if each.feature is None:
                continue
            for feature in (each.feature, *NEEDED_BY.get(each.feature, ())):
                missing_features[feature] = tuple(
                    dict.fromkeys((*missing_features.get(feature, ()), each.name))
                )
        return missing_features

    @property
    def capabilities(self) -> frozenset[Capability]:
        return CAPABILITIES - frozenset(self.missing_features)


def check_contract(schema: bytes) -> ContractCheck:
    """Compares a binary's JSON Schema with the contract. Raises `SchemaError`."""
    return ContractCheck(tuple(_missing(ProtocolSchema(schema))))


def _missing(schema: ProtocolSchema) -> Iterator[Missing]:
    named: set[tuple[str, Feature | None]] = set()
    for clause in CONTRACT:
        for name in (*_missing_of(clause, schema), *_required_unsent(clause, schema)):
            if (name, clause.feature) not in named:
                named.add((name, clause.feature))
                yield Missing(name, clause.feature)


def _missing_of(clause: Clause, schema: ProtocolSchema) -> Iterator[str]:
    message = schema.message(clause.kind, clause.method)
    if message is None:
        yield clause.method if clause.kind != "answer" else f"the answer to {clause.method}"
        return
    for path, wanted in clause.fields.items():
        if not _allows(schema, schema.at(message, path), wanted):
            value = f" {wanted}" if wanted.startswith('"') else ""
            yield f"{clause.method}.{path}{value}"


def _required_unsent(clause: Clause, schema: ProtocolSchema) -> Iterator[str]:
    if clause.kind not in ("request", "reply") or clause.feature not in (None, "client_tools"):
        return
    message = schema.message(clause.kind, clause.method)
    if message is None:
        return
    sent = {
        path.partition(".")[0].partition("[")[0]
        for each in CONTRACT
        if (each.kind, each.method) == (clause.kind, clause.method)
        for path in each.fields
    }
    for node in schema.nodes(message):
        for name in node.get("required") or ():
            if name not in sent:
                yield f"{clause.method}.{name} (it requires that, and this server does not send it)"


def _allows(schema: ProtocolSchema, found: list[Any], wanted: str) -> bool:
    for node in found:
        if wanted == ANY or node is True or node == {}:
            return True
        for each in schema.nodes(node):
            values = each.get("enum")
            if wanted.startswith('"'):
                if values is not None and wanted.strip('"') in values:
                    return True
                continue
            types = each.get("type")
            if wanted in (types if isinstance(types, list) else [types]):
                return True
            if types is None and "enum" not in each and "properties" in each and wanted == "object":
                return True
    return False
