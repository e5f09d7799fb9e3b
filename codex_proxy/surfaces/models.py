"""Resolves names of models, and makes the lists of models that are published.

Input: a name as a client wrote it, and the agent's models. Output: `ResolvedModel`. Raises `Fault`: MODEL_NOT_FOUND,
or INVALID_REQUEST for a blank name and for one that models of several agents have. A name is looked up as written
first; only then without its suffix `:model` or `:agent`, without an effort suffix (`-high`) and without the prefix
`claude-`. Case does not matter. Sources: docs/contract.md#whole-answers (the aliases),
docs/wire-rules.md#lists-and-stored-objects.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

import msgspec

from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import MODEL_SEPARATOR, Mode, Turn

DEFAULT_NAME: Final = "codex-5"
"""The name under which clients ask for the default model. Requests without a model mean it, too."""

OWN_DEFAULT: Final = "default"
"""The name under which the default model of another agent than Codex is listed, if nothing is known of its models."""

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Every reasoning effort in OpenAI's types. Each model supports some of them."""

_ASSUMED_EFFORTS: Final = ("low", "medium", "high")
"""The assumed efforts of a model that is not listed; nearly every provider knows them."""
_ALIAS_EFFORTS: Final = ("minimal", "low", "medium", "high")
_MODES: Final[dict[str, Mode]] = {":model": "model", ":agent": "agent"}
_CLAUDE: Final = "claude-"
_ANY: Final = "*"
"""Stands for any characters, or none, in an operator's alias."""
_MAX_COMPARED: Final = 100
_MAX_CANDIDATES: Final = 1_000
"""The names that an unknown one is compared with: an upstream may list thousands, and each takes some microseconds."""
_ALIAS_DEPTH: Final = 8  # operator aliases may name one another; a circle ends here


def billed_model(turn: Turn) -> str:
    """Returns the model's name for the usage report: the name by which the agent calls the model, not the name or
    alias that the client wrote; `codex-5` if the turn names no model, so that the agent uses its default.
    """
    return turn.model or DEFAULT_NAME


class ModelSource(Protocol):
    """The source of the current list of models: an agent, or several agents behind one interface. `models` returns
    the list; `any_model`: see `ModelCatalog`.
    """

    @property
    def name(self) -> str: ...

    @property
    def any_model(self) -> bool: ...

    @property
    def missing_features(self) -> Mapping[str, tuple[str, ...]]:
        """The capabilities that the installed release of the agent's program lacks (such as `effort`), each with
        the names of what is missing in its protocol.
        """
        ...

    @property
    def members(self) -> Mapping[str, ModelSource]:
        """The agents behind this interface, by name; the full names of their models are `NAME/MODEL`. Empty for a
        single agent.
        """
        ...

    def models(self) -> tuple[AgentModel, ...]: ...


class ModelCatalog:
    """The models that clients can ask for, and their names.

    `source` has the current list of models; if it is None, `models` is the list. `aliases` are the operator's, as
    pairs of alias and model name. `any_model`: whether a name that is not listed is sent to the provider (if there
    is a `source`, its own `any_model` counts). `default_model` is the model that `codex-5` means; empty: the
    agent's default. `defaults`: if there are several agents, the default model of each, by the agent's name.
    `plain`: the names of agents that only serve plain models (the model answers without an agent's prompt and
    tools), so that they have no agent turns; an empty name means the only agent. `other_tiers`: the service tiers
    of models that are not listed. `advice`: a sentence for the error about an unknown model. `codex`: the names of the
    agents that are Codex, an empty name means the only agent: if the default agent is one, `codex-5` and its variants
    are listed; they can be used in any case. `only`: the names of the agents whose models are included; None: all.
    """

    def __init__(
        self,
        *,
        models: tuple[AgentModel, ...] = (),
        aliases: tuple[tuple[str, str], ...] = (),
        any_model: bool = False,
        source: ModelSource | None = None,
        default_model: str = "",
        defaults: Mapping[str, str] | None = None,
        plain: Collection[str] = (),
        other_tiers: tuple[str, ...] = (),
        advice: str = "",
        codex: Collection[str] = ("",),
        only: frozenset[str] | None = None,
    ) -> None:
        self._models = models
        self._any_model = any_model
        self._source = source
        self.aliases = aliases
        self.default_model = default_model
        self.defaults = defaults or {}
        self.plain = frozenset(plain)
        self.other_tiers = other_tiers
        self.advice = advice
        self.codex = frozenset(codex)
        self.only = only
        members = {} if source is None else source.members
        self.members: Mapping[str, ModelSource] = {
            name: each for name, each in members.items() if only is None or name in only
        }
        """The agents by name, the default agent first; empty if the server has a single agent."""
        self.agent_names = frozenset(name.lower() for name in members)
        """The names of all agents, also of those that are not included. A model's name that begins with one means that
        agent, whatever models others list."""
        self._filtered: tuple[tuple[AgentModel, ...], tuple[AgentModel, ...]] = ((), ())
        """All models of the source, and those of them whose agent is in `only`."""
        self._names: tuple[object, Names] | None = None

    @property
    def models(self) -> tuple[AgentModel, ...]:
        """The current models. Returns the same tuple object as long as they do not change."""
        found = self._models if self._source is None else self._source.models()
        if self.only is None:
            return found
        if self._filtered[0] is not found:
            self._filtered = (found, tuple(model for model in found if model.agent in self.only))
        return self._filtered[1]

    @property
    def any_model(self) -> bool:
        """Whether a model that is not listed is sent to the provider, which accepts or refuses it."""
        return self._any_model if self._source is None else self._source.any_model

    @property
    def lists_codex(self) -> bool:
        """Whether `codex-5` and its variants are listed: whether they mean a model of Codex."""
        return next(iter(self.members), "") in self.codex

    @property
    def names(self) -> Names:
        """The table of names. It is rebuilt when the models or the agents have changed."""
        models, members = self.models, self.members
        state = (self.any_model, tuple((name, each.any_model) for name, each in members.items()))
        known = self._names
        if known is None or known[1].models is not models or known[0] != state:
            known = self._names = (state, Names(self, models, members))
        return known[1]

    def missing_features(self, model: str) -> tuple[str, ...]:
        """Returns the names of the capabilities that the agent of a model lacks (see `ModelSource.missing_features`).
        `model` is the agent's name of the model.
        """
        if self._source is None:
            return ()
        member = self.members.get(model.partition(MODEL_SEPARATOR)[0])
        return tuple((self._source if member is None else member).missing_features)

    def limited_to(self, agents: Collection[str]) -> ModelCatalog:
        """Returns a catalog with only the models of these agents, for a client that may not use the others."""
        if not self.members and self._source is not None and self._source.name in agents:
            return self
        first = next((name for name in self.members if name in agents), None)
        keeps_default = first is not None and self.default_model.startswith(f"{first}{MODEL_SEPARATOR}")
        return ModelCatalog(
            models=self._models,
            aliases=self.aliases,
            any_model=self._any_model,
            source=self._source,
            default_model=self.default_model if keeps_default else "",
            defaults=self.defaults,
            plain=self.plain,
            other_tiers=self.other_tiers,
            advice=self.advice,
            codex=self.codex,
            only=frozenset(agents),
        )


class ResolvedModel(msgspec.Struct, frozen=True):
    """What the name of a model means. `agent_model` is the agent's name of the model, empty for the agent's
    default. `effort` and `mode` are those that the name contains, None if it has none.
    """

    agent_model: str
    effort: str | None = None
    mode: Mode | None = None
    plain: bool = False
    """Whether the agent only serves plain models: the model answers without an agent's own prompt and tools."""


class Names:
    """A table from lower-case names to models.

    If the server has several agents, a model has its full name (`AGENT/MODEL`) and, if no other agent has a model
    of the same name, the name without the agent; an agent's name means its default model.
    """

    def __init__(
        self, catalog: ModelCatalog, models: tuple[AgentModel, ...], members: Mapping[str, ModelSource]
    ) -> None:
        self.models = models
        self.default = default_of(catalog)
        self._any_model = catalog.any_model
        self._operator = {name.lower(): target for name, target in catalog.aliases if _ANY not in name}
        self._patterns = [(name.lower(), target) for name, target in catalog.aliases if _ANY in name]
        self._models = {model.id.lower(): model.id for model in models}
        self._entries = {model.id: model for model in models}
        self._builtin: dict[str, str | None] = {}
        for base in ("codex-5", "codev-5"):
            self._builtin[base] = None
            self._builtin.update({f"{base}-{effort}": effort for effort in _ALIAS_EFFORTS})
        self._agents = {name.lower(): default_model_of(catalog, name) for name in members}
        self._short: dict[str, list[str]] = {}
        for model in models if members else ():
            short = model.id.partition(MODEL_SEPARATOR)[2].lower()
            if short.partition(MODEL_SEPARATOR)[0] not in catalog.agent_names:
                self._short.setdefault(short, []).append(model.id)

    def find(self, name: str, depth: int = 0) -> ResolvedModel | None:
        """Returns what a name means: as it is written, else without its effort suffix; None if it is unknown.
        Raises `Fault` INVALID_REQUEST if models of several agents have the name. `depth` is how many aliases led to
        the name; from `_ALIAS_DEPTH` on, aliases are not looked up, which ends a cycle of aliases.
        """
        name = name.lower()
        found = self._as_written(name, depth)
        if found is not None:
            return found
        base, _, effort = name.rpartition("-")
        if effort not in EFFORTS:
            return None
        found = self._as_written(base, depth)
        return None if found is None else msgspec.structs.replace(found, effort=effort)

    def entry(self, model: str) -> AgentModel | None:
        """Returns the agent's entry for its model of this name; None if it does not list it."""
        return self._entries.get(model)

    def find_pattern(self, name: str) -> ResolvedModel | None:
        """Finds the first alias with a `*` that matches the name, and returns the model that it stands for. None if
        no alias matches, or its model is unknown.
        """
        for pattern, target in self._patterns:
            if fnmatchcase(name.lower(), pattern):
                return self._target(target, 0)
        return None

    def similar_to(self, name: str) -> list[str]:
        """Returns up to three known names that are similar to an unknown `name`."""
        known = {**{short: ids[0] for short, ids in self._short.items()}, **self._models}
        near = difflib.get_close_matches(name.lower()[:_MAX_COMPARED], list(known)[:_MAX_CANDIDATES], n=3)
        return list(dict.fromkeys(known[each] for each in near))

    def _target(self, target: str, depth: int) -> ResolvedModel | None:
        found = self.find(target, depth + 1)
        if found is None and (
            self._any_model or target.partition(MODEL_SEPARATOR)[0].lower() in self._agents
        ):
            return ResolvedModel(target)
        return found

    def _as_written(self, name: str, depth: int) -> ResolvedModel | None:
        if name in self._operator and depth < _ALIAS_DEPTH:
            found = self._target(self._operator[name], depth)
            if found is not None:
                return found
        if name in self._models:
            return ResolvedModel(self._models[name])
        # An upstream may be another such server, which lists these names too: here they stay this server's own.
        if name in self._builtin and name not in self._agents:
            return ResolvedModel(self.default, self._builtin[name])
        short = self._short.get(name, ())
        if len(short) > 1:
            named = ", ".join(f"'{each}'" for each in short)
            raise bad_request(
                f"The model '{excerpt(name)}' is one of several agents. Use {named}.",
                "model",
                "ambiguous_model",
            )
        if short:
            return ResolvedModel(short[0])
        if name in self._agents:
            return ResolvedModel(self._agents[name])
        return ResolvedModel(self.default) if name == OWN_DEFAULT else None


class ServiceTier(msgspec.Struct, frozen=True):
    """The service tier of one turn: the one that the agent is sent (`given`) and the one that the answer reports
    (`served`).
    """

    given: str | None
    """The tier to send to the agent, by the agent's name; None to send none, so that the agent uses its own
    settings."""
    served: str
    """The tier that the answer reports, by OpenAI's name."""
    ignored: tuple[str, ...] = ()
    """The name of the request's parameter if it has no effect."""


def service_tier(asked: str | None, model: str, catalog: ModelCatalog) -> ServiceTier:
    """Returns the service tier of a turn. `asked` is the request's `service_tier`, None if it has none. `model` is
    the agent's name of the model; empty, or an agent's name and a slash: the one that the agent uses by itself. A
    tier that the model does not list is sent to the agent all the same, but the answer reports `default`, and the
    parameter counts as ignored.
    """
    listed = [each for each in catalog.models if model in (each.id, _unnamed(each))]
    if asked is None or asked == "auto":
        return ServiceTier(None, listed[0].default_tier if listed else "default")
    if asked == "default":
        return ServiceTier(asked, asked)
    tier = "priority" if asked == "fast" else asked  # two names of one tier, of which OpenAI shows this one
    if tier in {
        *(each for entry in listed for each in entry.service_tiers),
        *(() if listed else catalog.other_tiers),
    }:
        return ServiceTier(asked, tier)
    return ServiceTier(asked, "default", ("service_tier",))


def _unnamed(model: AgentModel) -> str | None:
    """Returns the name by which the model is meant without being named; None if its agent would use another one."""
    if not model.serves_unnamed:
        return None
    return f"{model.agent}{MODEL_SEPARATOR}" if model.agent else ""


def default_of(catalog: ModelCatalog) -> str:
    """Returns the agent's name of the default model; an empty string if this server does not know it."""
    if catalog.default_model:
        return catalog.default_model
    first = next(iter(catalog.members), None)
    if first is not None:
        return default_model_of(catalog, first)
    return next((model.id for model in catalog.models if model.is_default), "")


def window_of(model: str, catalog: ModelCatalog) -> int | None:
    """Returns the context window of the agent's model of this name (empty: its default), in tokens; None if it is
    unknown.
    """
    entry = catalog.names.entry(model or default_of(catalog))
    return None if entry is None else entry.context_window


def efforts_of(model: str, catalog: ModelCatalog) -> tuple[str, ...]:
    """Returns the reasoning efforts that a model supports; an empty tuple if they are unknown. `model` is the
    agent's name of the model; an empty string means its default model.
    """
    entry = catalog.names.entry(model or default_of(catalog))
    return () if entry is None else entry.efforts


def nearest_effort(effort: str, efforts: Sequence[str]) -> str:
    """Returns `effort` if it is one of the model's `efforts`, else the nearest lower one, else the lowest. If
    `efforts` is empty, `low`, `medium` and `high` are assumed.
    """
    known = [each for each in EFFORTS if each in (efforts or _ASSUMED_EFFORTS)]
    if not known or effort in known:
        return effort
    below = [each for each in known if EFFORTS.index(each) <= EFFORTS.index(effort)]
    return below[-1] if below else known[0]


def default_model_of(catalog: ModelCatalog, agent: str) -> str:
    """Returns the full name (`AGENT/MODEL`) of the default model of one of several agents; `AGENT/` if this server
    does not know it.
    """
    named = catalog.defaults.get(agent)
    if named is None:
        named = next((model.id for model in catalog.members[agent].models() if model.is_default), "")
    return f"{agent}{MODEL_SEPARATOR}{named}"


def resolve(name: str, catalog: ModelCatalog) -> ResolvedModel:
    """Returns the model, effort and mode that `name` means. Raises `Fault`: MODEL_NOT_FOUND, or INVALID_REQUEST if
    the name is blank or models of several agents have it.
    """
    if name.isspace():
        raise bad_request(
            "Invalid 'model': blank string. GET /v1/models lists the names.", "model", "empty_string"
        )
    names = catalog.names
    base, mode = split_mode(name)
    found = names.find(name)
    if found is None:
        found = names.find(base) if mode else None
        if found is None and base.lower().startswith(_CLAUDE):
            found = names.find(base[len(_CLAUDE) :])
        if found is None:
            found = names.find_pattern(base)
        if found is None and base:
            found = _unlisted(base, catalog)
        if found is not None and mode:
            found = msgspec.structs.replace(found, mode=mode)
    if found is None:
        raise _not_found(name, names.similar_to(base) if catalog.members else (), catalog)
    agent = found.agent_model.partition(MODEL_SEPARATOR)[0] if catalog.members else ""
    return msgspec.structs.replace(found, plain=True) if agent in catalog.plain else found


def _unlisted(name: str, catalog: ModelCatalog) -> ResolvedModel | None:
    """Returns a model that is not listed, if its agent accepts any name; else None. If the server has several
    agents, the name must begin with the agent's name and a slash.
    """
    if catalog.any_model:
        return ResolvedModel(name)
    agent, _, own = name.partition(MODEL_SEPARATOR)
    member = catalog.members.get(agent.lower())
    if member is None or not own or not member.any_model:
        return None
    return ResolvedModel(f"{agent.lower()}{MODEL_SEPARATOR}{own}")


def _not_found(name: str, like: Sequence[str], catalog: ModelCatalog) -> Fault:
    near = f" Is {' or '.join(repr(each) for each in like)} meant?" if like else ""
    agent = name.partition(MODEL_SEPARATOR)[0].lower() if MODEL_SEPARATOR in name else ""
    open_ended = [each for each, member in catalog.members.items() if member.any_model]
    if open_ended and agent not in catalog.members:
        forms = " or ".join(f"{each}{MODEL_SEPARATOR}MODEL" for each in open_ended)
        near += f" For a model that is not listed write {forms}."
    return Fault(
        Failure(
            kind=FaultKind.MODEL_NOT_FOUND,
            message=f"The model '{excerpt(name)}' does not exist. GET /v1/models lists the available "
            "models." + near + catalog.advice,
            param="model",
        )
    )


def split_mode(name: str) -> tuple[str, Mode | None]:
    """Splits a name into the name without its suffix `:model` or `:agent`, and the mode that the suffix means. A
    name without such a suffix is returned as it is, with None.
    """
    for suffix, mode in _MODES.items():
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], mode
    return name, None


def with_claude_prefix(name: str) -> str:
    """Returns the name with the prefix `claude-`, unless it contains `claude` or `anthropic`: Claude Code does not
    list other names.
    """
    return name if re.search("claude|anthropic", name.lower()) else _CLAUDE + name


def listed_names(catalog: ModelCatalog, env: str) -> list[str]:
    """Returns the names in the lists of models: those of the agent, the operator's aliases and, if the default agent
    is Codex, the built-in aliases for `env`, the value of PROXY_ENV (`codev-5*` for `dev`, else `codex-5*`). Without
    any of these, the list has the name `default`.
    """
    base = "codev-5" if env == "dev" else "codex-5"
    names = [
        *((base, *(f"{base}-{effort}" for effort in _ALIAS_EFFORTS)) if catalog.lists_codex else ()),
        *(model.id for model in catalog.models if not model.hidden),
        *(name for name, _ in catalog.aliases if _ANY not in name),
    ]
    return list(dict.fromkeys(names)) or [OWN_DEFAULT]


def model_of(name: str, catalog: ModelCatalog) -> AgentModel | None:
    """Returns the agent's entry for the model that `name` means; None if the agent accepts the model but does not
    list it. Raises `Fault` as `resolve` does.
    """
    return catalog.names.entry(resolve(name, catalog).agent_model)


def list_body(catalog: ModelCatalog, env: str, created: int) -> dict[str, Any]:
    """Returns the list object of OpenAI's `GET /v1/models`. An alias of a model that does not exist is left out.
    `env`: see `listed_names`. `created` is the creation time of each model, in seconds since 1970.
    """
    data = []
    for name in listed_names(catalog, env):
        try:
            data.append(one_body(name, catalog, created))
        except Fault:
            continue  # an alias that leads nowhere is not offered
    return {"object": "list", "data": data}


def one_body(name: str, catalog: ModelCatalog, created: int) -> dict[str, Any]:
    """Returns the model object with this name. Raises `Fault` as `resolve` does. `created` is the creation time, in
    seconds since 1970.
    """
    resolved = resolve(name, catalog)
    entry: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "codex"}
    missing_features = catalog.missing_features(resolved.agent_model)
    if missing_features:
        entry["off"] = list(missing_features)
    if catalog.members:
        entry["agent"] = resolved.agent_model.partition(MODEL_SEPARATOR)[0]
    model = catalog.names.entry(resolved.agent_model)
    if model is None:
        return entry
    entry["owned_by"] = model.owned_by
    if model.display_name:
        entry["display_name"] = model.display_name
    if model.context_window is not None:
        entry["context_window"] = model.context_window
    if model.input_modalities:
        entry["input_modalities"] = list(model.input_modalities)
    if model.efforts:
        entry["efforts"] = list(model.efforts)
    default_effort = resolved.effort or model.default_effort
    if default_effort is not None:
        entry["default_effort"] = default_effort
    return entry


def codex_list_body(models: Sequence[AgentModel]) -> dict[str, Any]:
    """Returns the list of models that Codex reads when it is the client: for each model, the entry that the agent
    itself gave (`AgentModel.native`). A model without such an entry is left out.
    """
    return {"models": [msgspec.Raw(model.native) for model in models if model.native]}
