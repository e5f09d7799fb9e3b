"""Resolves names of models, and lists them. A name is looked up as written, then without `:model` or `:agent`, an
effort (`-high`) and `claude-`, in any case. Raises `Fault`: MODEL_NOT_FOUND, or INVALID_REQUEST for a blank or
ambiguous name. Sources: docs/contract.md#whole-answers, docs/wire-rules.md#lists-and-stored-objects.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal, NotRequired, Protocol, TypeAlias, TypedDict, get_args

import msgspec

from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import MODEL_SEPARATOR, Mode, Turn
from codex_proxy.surfaces.answers.renderer import Count

DEFAULT_NAME: Final = "codex-5"
"""The default model, also of requests without a model."""

OWN_DEFAULT: Final = "default"
"""The default model of any agent, also by a name without `codex`, for which some clients would choose another API."""

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)
"""All efforts in OpenAI's types; each model supports some."""

_ASSUMED_EFFORTS: Final = ("low", "medium", "high")
"""The efforts of an unlisted model: nearly every provider knows them."""
_ALIAS_EFFORTS: Final = ("minimal", "low", "medium", "high")
_MODES: Final[dict[str, Mode]] = {":model": "model", ":agent": "agent"}
_CLAUDE: Final = "claude-"
_WILDCARD: Final = "*"
"""The character in an alias that stands for any characters, or none."""
_MAX_COMPARED: Final = 100
_MAX_CANDIDATES: Final = 1_000
"""Maximum names that are searched for similar ones: an upstream may list thousands."""
_ALIAS_DEPTH: Final = 8  # operator aliases may name one another; a circle ends here


def billed_model(turn: Turn) -> str:
    """Returns the turn's model; `codex-5` for the agent's default."""
    return turn.model or DEFAULT_NAME


NO_DEFAULTS: Final[Mapping[str, str]] = {}


class ModelSource(Protocol):
    """An agent, or several behind one interface."""

    @property
    def name(self) -> str: ...

    @property
    def any_model(self) -> bool:
        """Whether unlisted names go to the provider."""

    @property
    def missing_features(self) -> Mapping[str, tuple[str, ...]]:
        """Capabilities that the agent's release lacks, with what its protocol misses."""

    @property
    def members(self) -> Mapping[str, ModelSource]:
        """The agents by name (models are `NAME/MODEL`); empty for a single one."""

    def models(self) -> tuple[AgentModel, ...]: ...


class ModelCatalog:
    """The models and names for clients. `default_model`: the model that `codex-5` means; `defaults`: the default
    models of several agents, by their names. `plain`: agents that are only plain models. `codex`: agents whose
    default model is listed as `codex-5` (an empty name: the only agent). `other_tiers`: service tiers of unlisted
    models. `advice`: what an error about an unknown model says last.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        aliases: tuple[tuple[str, str], ...] = (),
        default_model: str = "",
        defaults: Mapping[str, str] = NO_DEFAULTS,
        plain: Collection[str] = (),
        other_tiers: tuple[str, ...] = (),
        advice: str = "",
        codex: Collection[str] = ("",),
    ) -> None:
        self._source = source
        self.aliases = aliases
        self.default_model = default_model
        self.defaults = defaults
        self.plain = plain
        self.other_tiers = other_tiers
        self.advice = advice
        self.codex = codex
        self.only: frozenset[str] | None = None
        """The agents whose models are in the catalog; None: all."""
        self.members = source.members
        """The agents by name, the default first; empty for a single one."""
        self.usable: frozenset[str] | None = None
        """The agent's names of the models that the client may use; None: all."""
        self.agent_names = frozenset(map(str.lower, source.members))
        self._filtered: tuple[tuple[AgentModel, ...], tuple[AgentModel, ...]] = ((), ())
        """All models when they were last read, and those of them that belong to `only`."""
        self._names: tuple[object, Names] | None = None

    @property
    def models(self) -> tuple[AgentModel, ...]:
        """The models of `only`: the same tuple until they change."""
        found = self._source.models()
        if self.only is None:
            return found
        if self._filtered[0] is not found:
            self._filtered = (found, tuple(model for model in found if model.agent in self.only))
        return self._filtered[1]

    @property
    def any_model(self) -> bool:
        return self._source.any_model

    @property
    def lists_codex(self) -> bool:
        """Whether `codex-5` means a model of Codex."""
        return next(iter(self.members), "") in self.codex

    def owner_of(self, model: str) -> str:
        """Returns the owner of a model that names none itself: `codex`, or the name of its agent."""
        agent = model.partition(MODEL_SEPARATOR)[0] if self.members else ""
        return "codex" if agent in self.codex else agent or self._source.name

    @property
    def names(self) -> Names:
        """The names of the models, made again when models or agents have changed."""
        models, members = self.models, self.members
        state = (self.any_model, tuple((name, each.any_model) for name, each in members.items()))
        known = self._names
        if known is None or known[1].models is not models or known[0] != state:
            known = self._names = (state, Names(self, models, members))
        return known[1]

    def missing_features(self, model: str) -> tuple[str, ...]:
        return tuple(self.members.get(model.partition(MODEL_SEPARATOR)[0], self._source).missing_features)

    def for_models(self, models: frozenset[str]) -> ModelCatalog:
        """Returns the catalog for a client that may use these models of the agents: only they are suggested, and share
        a short name.
        """
        limited = copy.copy(self)
        limited.usable, limited._names = models, None
        return limited

    def for_agents(self, agents: Collection[str]) -> ModelCatalog:
        if not self.members and self._source.name in agents:
            return self
        limited = copy.copy(self)
        limited.only = frozenset(agents)
        limited.members = {name: each for name, each in self.members.items() if name in agents}
        first = next(iter(limited.members), None)
        if first is None or not self.default_model.startswith(f"{first}{MODEL_SEPARATOR}"):
            limited.default_model = ""
        limited._filtered, limited._names = ((), ()), None
        return limited


class ResolvedModel(msgspec.Struct, frozen=True):
    """The agent's name of the model (empty: its default), and the effort and mode in the client's name of it."""

    agent_model: str
    effort: str | None = None
    mode: Mode | None = None
    plain: bool = False


class Names:
    """Models by lower-case names. If there are several agents, a model has its full name (`AGENT/MODEL`) and, if it
    is unique, its own; an agent's name means that agent's default model.
    """

    def __init__(
        self, catalog: ModelCatalog, models: tuple[AgentModel, ...], members: Mapping[str, ModelSource]
    ) -> None:
        self.models = models
        self.default = default_of(catalog)
        self._any_model = catalog.any_model
        self._lists_codex = catalog.lists_codex
        self._operator = {name.lower(): target for name, target in catalog.aliases if _WILDCARD not in name}
        self._patterns = [(name.lower(), target) for name, target in catalog.aliases if _WILDCARD in name]
        self._models = {model.id.lower(): model.id for model in models}
        self.entries = {model.id: model for model in models}
        self._usable = catalog.usable
        self._builtin: dict[str, str | None] = {}
        for base in ("codex-5", "codev-5"):
            self._builtin[base] = None
            self._builtin.update({f"{base}-{effort}": effort for effort in _ALIAS_EFFORTS})
        self._builtin[OWN_DEFAULT] = None
        self._agents = {name.lower(): default_model_of(catalog, name) for name in members}
        self._short: dict[str, list[str]] = {}
        for model in models if members else ():
            short = model.id.partition(MODEL_SEPARATOR)[2].lower()
            if short.partition(MODEL_SEPARATOR)[0] not in catalog.agent_names:
                self._short.setdefault(short, []).append(model.id)

    def find(self, name: str, depth: int = 0) -> ResolvedModel | None:
        """Returns what a name means, as written or without its effort. From `_ALIAS_DEPTH` on aliases are not looked
        up.
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

    def find_pattern(self, name: str) -> ResolvedModel | None:
        """Returns the model of the first alias with a `*` that matches."""
        for pattern, target in self._patterns:
            if fnmatchcase(name.lower(), pattern):
                return self._target(target, 0)
        return None

    def similar_to(self, name: str) -> list[str]:
        """Returns up to three known names that are similar."""
        own = {each: self.default for each in self._builtin if self._lists_codex and each.startswith("codex")}
        known = {
            **own,
            **{short: self._of_client(ids)[0] for short, ids in self._short.items()},
            **self._models,
        }
        known = {each: id for each, id in known.items() if self._may_use(id)}
        near = difflib.get_close_matches(name.lower()[:_MAX_COMPARED], list(known)[:_MAX_CANDIDATES], n=3)
        return list(dict.fromkeys(each if each in own else known[each] for each in near))

    def _may_use(self, model: str) -> bool:
        return self._usable is None or model in self._usable

    def _of_client(self, models: list[str]) -> list[str]:
        """Returns those that the client may use; if none, the first, which it is then refused."""
        return [model for model in models if self._may_use(model)] or models[:1]

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
        short = self._short.get(name) or []
        if len(short) > 1:
            short = self._of_client(short)
        if len(short) > 1:
            named = ", ".join(f"'{each}'" for each in short)
            raise bad_request(
                f"Several agents have the model '{excerpt(name)}'. Use {named}.", "model", "ambiguous_model"
            )
        if short:
            return ResolvedModel(short[0])
        if name in self._agents:
            return ResolvedModel(self._agents[name])
        return None


class ServiceTier(msgspec.Struct, frozen=True):
    given: str | None
    """The tier that the agent is given; None: its own settings decide."""
    served: str
    """The answer's tier, by OpenAI's name."""
    ignored: tuple[str, ...] = ()
    """The parameter, if it has no effect."""


def service_tier(requested: str | None, resolved: ResolvedModel, catalog: ModelCatalog) -> ServiceTier:
    """Returns a request's service tier. A tier that the model does not list is sent, but reported as `default`; only
    a model server may still use it.
    """
    model = resolved.agent_model  # empty, or `AGENT/`: the agent's own
    listed = [each for each in catalog.models if model in (each.id, default_name(each))]
    if requested is None or requested == "auto":
        return ServiceTier(None, listed[0].default_tier if listed else "default")
    if requested == "default":
        return ServiceTier(requested, requested)
    tier = (
        "priority" if requested == "fast" else requested
    )  # two names of one tier, of which OpenAI shows this one
    if tier in {
        *(each for entry in listed for each in entry.service_tiers),
        *(() if listed else catalog.other_tiers),
    }:
        return ServiceTier(requested, tier)
    return ServiceTier(requested, "default", () if resolved.plain else ("service_tier",))


def default_name(model: AgentModel) -> str | None:
    """Returns an empty name (or `AGENT/`) if this is the agent's default, else None."""
    if not model.serves_unnamed:
        return None
    return f"{model.agent}{MODEL_SEPARATOR}" if model.agent else ""


def default_of(catalog: ModelCatalog) -> str:
    """Returns the agent's name of the default model, or ""."""
    if catalog.default_model:
        return catalog.default_model
    first = next(iter(catalog.members), None)
    if first is not None:
        return default_model_of(catalog, first)
    return next((model.id for model in catalog.models if model.is_default), "")


def window_of(model: str, catalog: ModelCatalog) -> int | None:
    """Returns the context window's tokens; an empty `model` is the default."""
    entry = catalog.names.entries.get(model or default_of(catalog))
    return None if entry is None else entry.context_window


def efforts_of(model: str, catalog: ModelCatalog) -> tuple[str, ...]:
    """Returns the efforts of a model; an empty `model` is the default."""
    entry = catalog.names.entries.get(model or default_of(catalog))
    return () if entry is None else entry.efforts


def nearest_effort(effort: str, efforts: Sequence[str]) -> str:
    """Returns the effort, else the nearest lower one, else the lowest; without `efforts` low, medium and high are
    assumed.
    """
    known = [each for each in EFFORTS if each in (efforts or _ASSUMED_EFFORTS)]
    if not known or effort in known:
        return effort
    below = [each for each in known if EFFORTS.index(each) <= EFFORTS.index(effort)]
    return below[-1] if below else known[0]


def default_model_of(catalog: ModelCatalog, agent: str) -> str:
    """Returns `AGENT/MODEL`; `AGENT/` if unknown."""
    named = catalog.defaults.get(agent)
    if named is None:
        named = next((model.id for model in catalog.members[agent].models() if model.is_default), "")
    return f"{agent}{MODEL_SEPARATOR}{named}"


def resolve(name: str, catalog: ModelCatalog, names: Names | None = None) -> ResolvedModel:
    """Returns what `name` means. `names`: the catalog's, if made already."""
    if name.isspace():
        raise bad_request(
            "Invalid 'model': blank string. GET /v1/models lists the names.", "model", "empty_string"
        )
    names = names or catalog.names
    base, mode = split_mode(name)
    found = names.find(name)
    if found is None:
        found = names.find(base) if mode else None
        if found is None and base.lower().startswith(_CLAUDE):
            found = names.find(base[len(_CLAUDE) :])
        if found is None:
            found = names.find_pattern(base)
        if found is None and base:
            found = _resolve_unlisted(base, catalog)
        if found is not None and mode:
            found = msgspec.structs.replace(found, mode=mode)
    if found is None:
        raise _not_found(name, names.similar_to(base), catalog)
    agent = found.agent_model.partition(MODEL_SEPARATOR)[0] if catalog.members else ""
    return msgspec.structs.replace(found, plain=True) if agent in catalog.plain else found


def _resolve_unlisted(name: str, catalog: ModelCatalog) -> ResolvedModel | None:
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
    return Fault.of(
        FaultKind.MODEL_NOT_FOUND,
        f"The model '{excerpt(name)}' does not exist. GET /v1/models lists the available "
        "models." + near + catalog.advice,
        param="model",
    )


def split_mode(name: str) -> tuple[str, Mode | None]:
    """Returns the name without `:model` or `:agent`, and the mode."""
    for suffix, mode in _MODES.items():
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], mode
    return name, None


def with_claude_prefix(name: str) -> str:
    """Returns a name with `claude-` in front, unless it has `claude` or `anthropic`."""
    return name if re.search("claude|anthropic", name.lower()) else _CLAUDE + name


def listed_names(catalog: ModelCatalog, env: str) -> list[str]:
    """Returns Codex's `default` and `codex-5*` or `codev-5*`, the agents' models, and aliases; if there are none,
    `default`.
    """
    base = "codev-5" if env == "dev" else "codex-5"
    codex = (OWN_DEFAULT, base, *(f"{base}-{effort}" for effort in _ALIAS_EFFORTS))
    names = [
        *(codex if catalog.lists_codex else ()),
        *(model.id for model in catalog.models if not model.hidden),
        *(name for name, _ in catalog.aliases if _WILDCARD not in name),
    ]
    return list(dict.fromkeys(names)) or [OWN_DEFAULT]


def model_of(name: str, catalog: ModelCatalog) -> AgentModel | None:
    """Returns the listed model with this name, or None. Raises the `Fault`s of `resolve`."""
    return catalog.names.entries.get(resolve(name, catalog).agent_model)


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: Count
    owned_by: str
    off: NotRequired[list[str]]
    agent: NotRequired[str]
    display_name: NotRequired[str]
    context_window: NotRequired[Count]
    input_modalities: NotRequired[list[str]]
    efforts: NotRequired[list[str]]
    default_effort: NotRequired[str]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[Model]


def list_body(catalog: ModelCatalog, env: str, created: int) -> ModelList:
    """Returns the list of models, without aliases of unknown ones. `created`: seconds since 1970."""
    data, names = [], catalog.names
    for name in listed_names(catalog, env):
        try:
            data.append(one_body(name, catalog, created, names))
        except Fault:
            continue  # an alias that leads nowhere is not offered
    return {"object": "list", "data": data}


def one_body(name: str, catalog: ModelCatalog, created: int, names: Names | None = None) -> Model:
    """Returns the object of one model. `names`: see `resolve`."""
    names = names or catalog.names
    resolved = resolve(name, catalog, names)
    owner = catalog.owner_of(resolved.agent_model)
    entry: Model = {"id": name, "object": "model", "created": created, "owned_by": owner}
    missing_features = catalog.missing_features(resolved.agent_model)
    if missing_features:
        entry["off"] = list(missing_features)
    if catalog.members:
        entry["agent"] = resolved.agent_model.partition(MODEL_SEPARATOR)[0]
    model = names.entries.get(resolved.agent_model)
    if model is None:
        return entry
    entry["owned_by"] = model.owned_by or owner
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
