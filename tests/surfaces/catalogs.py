"""Catalogs of models that do not change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codex_proxy.core.account import AgentModel
from codex_proxy.surfaces.models import ModelCatalog, ModelSource


class FixedModels:
    """An agent that has always the same models."""

    name = "fixed"
    missing_features: Mapping[str, tuple[str, ...]] = {}
    members: Mapping[str, ModelSource] = {}

    def __init__(self, models: tuple[AgentModel, ...], any_model: bool) -> None:
        self.any_model = any_model
        self._models = models

    def models(self) -> tuple[AgentModel, ...]:
        return self._models


def catalog_of(models: tuple[AgentModel, ...] = (), *, any_model: bool = False, **more: Any) -> ModelCatalog:
    return ModelCatalog(FixedModels(models, any_model), **more)
