"""Resolves names of models, and makes the lists of models that are published.

Comes in: a name as a client wrote it, and the models of the agent. Goes out: `Resolved`, or a `Fault`
MODEL_NOT_FOUND. A name is looked up as written first; only then are the suffix `:model` or `:agent` and after that an
effort suffix taken off. Case does not matter. Sources: docs/contract.md#whole-answers (the aliases),
docs/wire-rules.md#lists-and-stored-objects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

import msgspec

from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import Mode, Turn

DEFAULT_NAME: Final = "codex-5"
"""The name of the agent's default model, also for requests that name no model."""

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Every reasoning effort of OpenAI's types. Each model has its own selection of them."""

_ALIAS_EFFORTS: Final = ("minimal", "low", "medium", "high")
_MODES: Final[dict[str, Mode]] = {":model": "model", ":agent": "agent"}
_CLAUDE: Final = "claude-"
_ANY: Final = "*"
"""In an operator's alias: any letters, or none."""
_ALIAS_DEPTH: Final = 8  # operator aliases may name one another; a circle ends here


def billed_model(turn: Turn) -> str:
    """Returns the model's name for the usage report: the agent's own name, where it is known."""
    return turn.model or DEFAULT_NAME


class ModelSource(Protocol):
    """An agent, as far as it knows which models there are now."""

    @property
    def any_model(self) -> bool: ...

    def models(self) -> tuple[AgentModel, ...]: ...


class ModelCatalog:
    """The models that can be asked for. `aliases` are the operator's; `any_model`: the provider takes other names.

    `source` tells the models where they may change; else they are those that are given. `default_model` is what
    `codex-5` means; empty: the agent's own default. `off`: what the agent cannot do because of its program's release.
    `other_tiers`: the service tiers of models that are not listed. `advice`: a further sentence for whoever asks for a
    model that does not exist. `lists_codex`: `codex-5` and its like are listed; they are known even where they are not.
    """

    def __init__(
        self,
        *,
        models: tuple[AgentModel, ...] = (),
        aliases: tuple[tuple[str, str], ...] = (),
        any_model: bool = False,
        source: ModelSource | None = None,
        default_model: str = "",
        off: tuple[str, ...] = (),
        other_tiers: tuple[str, ...] = (),
        advice: str = "",
        lists_codex: bool = True,
    ) -> None:
        self._models = models
        self._any_model = any_model
        self._source = source
        self.aliases = aliases
        self.default_model = default_model
        self.off = off
        self.other_tiers = other_tiers
        self.advice = advice
        self.lists_codex = lists_codex

    @property
    def models(self) -> tuple[AgentModel, ...]:
        """The models that there are now."""
        return self._models if self._source is None else self._source.models()

    @property
    def any_model(self) -> bool:
        """Whether names that are not listed are passed on for the provider to judge."""
        return self._any_model if self._source is None else self._source.any_model


class Resolved(msgspec.Struct, frozen=True):
    """The model, effort and mode that a name means. `agent_model` is empty where the agent takes its default."""

    agent_model: str
    effort: str | None = None
    mode: Mode | None = None


class _Names:
    """The models by their names in lower case."""

    def __init__(self, catalog: ModelCatalog) -> None:
        self._operator = {name.lower(): target for name, target in catalog.aliases if _ANY not in name}
        self._patterns = [(name.lower(), target) for name, target in catalog.aliases if _ANY in name]
        self._models = {model.id.lower(): model.id for model in catalog.models}
        self._builtin: dict[str, str | None] = {}
        for base in ("codex-5", "codev-5"):
            self._builtin[base] = None
            self._builtin.update({f"{base}-{effort}": effort for effort in _ALIAS_EFFORTS})
        self._default = default_of(catalog)
        self._any_model = catalog.any_model

    def find(self, name: str, depth: int = 0) -> Resolved | None:
        """Looks up a name as written, else without its effort suffix."""
        name = name.lower()
        found = self._as_written(name, depth)
        if found is not None:
            return found
        base, _, effort = name.rpartition("-")
        if effort not in EFFORTS:
            return None
        found = self._as_written(base, depth)
        return None if found is None else msgspec.structs.replace(found, effort=effort)

    def find_pattern(self, name: str) -> Resolved | None:
        """Looks a name up among the aliases with a `*`, of which the first that fits counts."""
        for pattern, target in self._patterns:
            if fnmatchcase(name.lower(), pattern):
                return self._target(target, 0)
        return None

    def _target(self, target: str, depth: int) -> Resolved | None:
        found = self.find(target, depth + 1)
        return Resolved(target) if found is None and self._any_model else found

    def _as_written(self, name: str, depth: int) -> Resolved | None:
        if name in self._operator and depth < _ALIAS_DEPTH:
            found = self._target(self._operator[name], depth)
            if found is not None:
                return found
        if name in self._models:
            return Resolved(self._models[name])
        if name in self._builtin:
            return Resolved(self._default, self._builtin[name])
        return None


class ServiceTier(msgspec.Struct, frozen=True):
    """The service tier of a turn."""

    given: str | None
    """What the agent is told, in its own words; None where it uses its own settings."""
    served: str
    """The tier that serves, in OpenAI's words."""
    ignored: tuple[str, ...] = ()
    """The name of the parameter where it has no effect."""


def service_tier(asked: str | None, model: str, catalog: ModelCatalog) -> ServiceTier:
    """Returns the tier for a request. `model` is the agent's name of the model; empty is the agent's default."""
    listed = [each for each in catalog.models if each.id == model or not model]
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


def default_of(catalog: ModelCatalog) -> str:
    """Returns the agent's name of the default model; empty where only the agent knows it."""
    if catalog.default_model:
        return catalog.default_model
    return next((model.id for model in catalog.models if model.is_default), "")


def window_of(model: str, catalog: ModelCatalog) -> int | None:
    """The context window of the agent's model of this name ('' is its default), in tokens; None where it is unknown."""
    model = model or default_of(catalog)
    return next((each.context_window for each in catalog.models if each.id == model), None)


def resolve(name: str, catalog: ModelCatalog) -> Resolved:
    """Returns the model, effort and mode that `name` means. Raises `Fault` MODEL_NOT_FOUND."""
    if name.isspace():
        raise bad_request(
            "Invalid 'model': blank string. GET /v1/models lists the names.", "model", "empty_string"
        )
    names = _Names(catalog)
    found = names.find(name)
    if found is not None:
        return found
    base, mode = split_mode(name)
    found = names.find(base) if mode else None
    if found is None and base.lower().startswith(_CLAUDE):
        found = names.find(base[len(_CLAUDE) :])
    if found is None:
        found = names.find_pattern(base)
    if found is not None:
        return msgspec.structs.replace(found, mode=mode or found.mode)
    if catalog.any_model and base:
        return Resolved(base, mode=mode)
    raise Fault(
        Failure(
            kind=FaultKind.MODEL_NOT_FOUND,
            message=f"The model '{excerpt(name)}' does not exist here. GET /v1/models lists the names that do."
            + catalog.advice,
            param="model",
        )
    )


def split_mode(name: str) -> tuple[str, Mode | None]:
    """Splits a name from its suffix `:model` or `:agent`."""
    for suffix, mode in _MODES.items():
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], mode
    return name, None


def with_claude_prefix(name: str) -> str:
    """The name by which Claude Code lists a model: it leaves out those that have neither word in them."""
    return name if re.search("claude|anthropic", name.lower()) else _CLAUDE + name


def listed_names(catalog: ModelCatalog, env: str) -> list[str]:
    """What lists show: the agent's models, the operator's aliases, and the aliases of `env`: `codev-5*` in `dev`
    stacks, `codex-5*` elsewhere."""
    base = "codev-5" if env == "dev" else "codex-5"
    names = [
        *((base, *(f"{base}-{effort}" for effort in _ALIAS_EFFORTS)) if catalog.lists_codex else ()),
        *(model.id for model in catalog.models if not model.hidden),
        *(name for name, _ in catalog.aliases if _ANY not in name),
    ]
    return list(dict.fromkeys(names))


def model_of(name: str, catalog: ModelCatalog) -> AgentModel | None:
    """The agent's entry of the model that a name means; None where the agent lists none. Raises `Fault`
    MODEL_NOT_FOUND."""
    meant = resolve(name, catalog).agent_model
    return next((model for model in catalog.models if model.id == meant), None)


def list_body(catalog: ModelCatalog, env: str, created: int) -> dict[str, Any]:
    """OpenAI's list, of `listed_names`."""
    data = []
    for name in listed_names(catalog, env):
        try:
            data.append(one_body(name, catalog, created))
        except Fault:
            continue  # an alias that leads nowhere is not offered
    return {"object": "list", "data": data}


def one_body(name: str, catalog: ModelCatalog, created: int) -> dict[str, Any]:
    """One entry, under the name that was asked for. Raises `Fault` MODEL_NOT_FOUND."""
    resolved = resolve(name, catalog)
    entry: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "codex"}
    if catalog.off:
        entry["off"] = list(catalog.off)
    model = next((model for model in catalog.models if model.id == resolved.agent_model), None)
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
    """Returns the list in the shape that Codex reads as a client: the entries as the agent gave them."""
    return {"models": [msgspec.Raw(model.native) for model in models if model.native]}
