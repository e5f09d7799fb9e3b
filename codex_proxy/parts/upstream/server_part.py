"""Tells a server what of its requests model servers get: the clients' keys, and some of their headers."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from codex_proxy.app.server_parts import ServerPart
from codex_proxy.http.middleware.access import FORWARDED_HEADERS, PASSES_KEYS
from codex_proxy.parts import own_settings
from codex_proxy.parts.upstream.upstream_specs import UpstreamSettings
from codex_proxy.settings.fields import Settings


class UpstreamPart(ServerPart):
    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings

    def add_to(self, app: web.Application) -> None:
        app[PASSES_KEYS] = self._settings.passes_keys
        tables = self._settings.upstreams.values()
        app[FORWARDED_HEADERS] = frozenset(name for table in tables for name in table.forward_headers)


def server_part(settings: Settings, environ: Mapping[str, str]) -> ServerPart:
    return UpstreamPart(own_settings(settings, UpstreamSettings))
