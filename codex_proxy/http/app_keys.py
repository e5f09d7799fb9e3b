"""The `AppKey`s of the server's parts: `request.app[CLOCK]`. A part of a single module has its key there."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from codex_proxy.admission.admit import Admission
from codex_proxy.admission.clients import Clients
from codex_proxy.core.interfaces import Clock, IdSource
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs.scheduler import RunScheduler
from codex_proxy.store.usage_recorder import UsageRecorder
from codex_proxy.surfaces.models import ModelCatalog

RUNS: Final = web.AppKey("runs", RunScheduler)
CLOCK: Final = web.AppKey("clock", Clock)
IDS: Final = web.AppKey("ids", IdSource)
CATALOG: Final = web.AppKey("catalog", ModelCatalog)
CLIENTS: Final = web.AppKey("clients", Clients)
"""The clients that may use the server, and what each of them may do."""
USAGE: Final = web.AppKey("usage", UsageRecorder)
ADMISSION: Final = web.AppKey("admission", Admission)
RESPONSES: Final = web.AppKey("responses", ResponsesService)
