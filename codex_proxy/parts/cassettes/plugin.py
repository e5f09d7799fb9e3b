"""The pytest plugin: servers for tests of programs that call a model (`docs/cassettes.md`). The server is imported only
for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from codex_proxy.parts.cassettes.testing import TestServer


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("codex-proxy")
    group.addoption(
        "--cassettes",
        choices=["replay", "record", "missing"],
        default="replay",
        help="For tests with the marker `cassette`: replay (default), record anew, or record what is missing.",
    )
    parser.addini("cassettes", "The folder of cassettes, beside the test file.", default="cassettes")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "cassette(name, files=False): the server of the test replays the cassettes of this name; with `files` what "
        "was done to files too, in its `folder`",
    )


@pytest.fixture(scope="session")
def _codex_proxy_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from codex_proxy.parts.cassettes.testing import Servers

    servers = Servers(tmp_path_factory.mktemp("codex-proxy"))
    yield servers
    servers.stop()


def _server(request: pytest.FixtureRequest, path: str) -> TestServer:
    servers = request.getfixturevalue("_codex_proxy_servers")
    marker = request.node.get_closest_marker("cassette")
    if marker is None:
        server: TestServer = servers.fake()
    else:
        folder = (
            request.path.parent
            / request.config.getini("cassettes")
            / (marker.args or (request.node.name,))[0]
        )
        mode, files = request.config.getoption("--cassettes"), bool(marker.kwargs.get("files"))
        server = servers.cassette(folder, mode, files=files)
    return server.for_test(path)


@pytest.fixture
def openai_server(request: pytest.FixtureRequest) -> TestServer:
    """A server of OpenAI's API: the fake agent or, with the marker `cassette`, recorded turns."""
    return _server(request, "/v1")


@pytest.fixture
def anthropic_server(request: pytest.FixtureRequest) -> TestServer:
    """A server of Anthropic's API: the fake agent or, with the marker `cassette`, recorded turns."""
    return _server(request, "")
