"""The `AppKey`s of parts that several modules use."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from codex_proxy.admission.admit import Admission
from codex_proxy.admission.clients import Clients
from codex_proxy.core.interfaces import Clock, FileSource, IdSource, SessionFiles
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs.scheduler import RunScheduler
from codex_proxy.store.usage import UsageRecorder
from codex_proxy.surfaces.models import ModelCatalog

RUNS: Final = web.AppKey("runs", RunScheduler)
CLOCK: Final = web.AppKey("clock", Clock)
FILE_SOURCE: Final = web.AppKey("file_source", FileSource)
"""Not set if the server keeps no files."""
SESSION_FILES: Final = web.AppKey("session_files", SessionFiles)
"""Not set if the server keeps no files of sessions."""
IDS: Final = web.AppKey("ids", IdSource)
CATALOG: Final = web.AppKey("catalog", ModelCatalog)
CLIENTS: Final = web.AppKey("clients", Clients)
USAGE: Final = web.AppKey("usage", UsageRecorder)
ADMISSION: Final = web.AppKey("admission", Admission)
KEEPALIVE: Final = web.AppKey("keepalive", float)
"""Seconds of silence until a stream gets bytes that keep it alive; 0: never."""
RESPONSES: Final = web.AppKey("responses", ResponsesService)
