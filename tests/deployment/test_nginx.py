"""nginx with the configuration of deploy/, in front of a server that is set up as that page says."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.deployment.examples import example, replace_all
from tests.http.serving import Proxy, fake_proxy, until, user
from tests.nginx import free_port, needs_nginx, nginx
from tests.waiting import PATIENCE, poll

pytestmark = needs_nginx

NAME = "codex.example.org"
KEY = "a-key-of-some-length"
AUTH = {"Authorization": f"Bearer {KEY}"}


def certificate(folder: Path) -> None:
    """`key.pem` and `cert.pem` for the name of the example."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    no_password = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, no_password)
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))


class Front:
    """nginx and the server behind it, and a client that finds the example's name at nginx."""

    def __init__(self, behind: Proxy, session: aiohttp.ClientSession, port: int) -> None:
        self.behind = behind
        self.session = session
        self.url = f"https://{NAME}:{port}"

    def post(self, body: Any) -> Any:
        data = io.BytesIO(json.dumps(body).encode())
        headers = {**AUTH, "Content-Type": "application/json"}
        return self.session.post(f"{self.url}/v1/chat/completions", data=data, headers=headers)


class ToThisMachine(aiohttp.abc.AbstractResolver):
    """Every name is this machine's."""

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        """Nothing is open."""


@contextlib.asynccontextmanager
async def nginx_in_front(behind: Proxy, folder: Path) -> AsyncIterator[Front]:
    port = free_port()
    certificate(folder)
    changes = (
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        (
            "# ssl_certificate ...; ssl_certificate_key ...;",
            f"ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;",
        ),
        ("http://127.0.0.1:11435", f"http://127.0.0.1:{behind.server.port}"),
    )
    trusted = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    line = aiohttp.TCPConnector(ssl=trusted, resolver=ToThisMachine())
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with (
        nginx(folder, replace_all(example("nginx.conf"), *changes)),
        aiohttp.ClientSession(connector=line, timeout=timeout) as session,
    ):
        front = Front(behind, session, port)
        await wait_until_answers(front)
        yield front


async def wait_until_answers(front: Front) -> None:
    async def answers() -> bool:
        with contextlib.suppress(aiohttp.ClientConnectorError):
            async with front.session.get(f"{front.url}/livez") as reply:
                assert reply.status in (200, 403)
                return True
        return False

    await poll(answers)


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    """As the page says: keys, the proxy's address, the name that clients use."""
    settings = {"api_key": KEY, "trusted_proxies": "127.0.0.1,::1", "allowed_hosts": NAME, "metrics": True}
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "release")}
    async with (
        fake_proxy(tmp_path, environment, fake_dialect="app-server", **settings) as behind,
        nginx_in_front(behind, tmp_path) as front,
    ):
        yield front


async def test_a_stream_comes_as_it_is_made(front: Front, tmp_path: Path) -> None:
    async with front.post(user("[[fake:text hold=1]]", stream=True)) as reply:
        assert reply.status == 200
        said = b""
        while b'"content"' not in said:
            said += await reply.content.readany()
        assert b"[DONE]" not in said
        (tmp_path / "release").touch()
        assert (await reply.content.read()).endswith(b"data: [DONE]\n\n")


async def test_a_client_that_leaves_is_seen_to_leave(front: Front) -> None:
    async with front.post(user("[[fake:text hold=1]]", stream=True)) as reply:
        await reply.content.readany()
        assert front.behind.server.runs.running == 1
        # As a program that ends: asyncio's polite end of TLS waits for a word that nginx does not read now.
        reply.connection.transport.abort()
    await until(lambda: front.behind.server.runs.running == 0)


async def test_the_websocket_of_responses_opens_and_answers(front: Front) -> None:
    async with front.session.ws_connect(f"{front.url}/v1/responses", headers=AUTH) as socket:
        await socket.send_json({"type": "response.create", "model": "codex-5", "input": "Hello."})
        kinds: list[str] = []
        while not kinds or kinds[-1] != "response.completed":
            kinds.append((await socket.receive_json())["type"])
    assert kinds[0] == "response.created"


@pytest.mark.exhaustive
async def test_a_large_body_passes_and_one_that_is_too_large_does_not(front: Front) -> None:
    async with front.post(user("x" * (5 << 20))) as reply:
        assert reply.status == 200
    async with front.post(user("x" * (33 << 20))) as reply:
        assert reply.status == 413


async def test_only_the_key_opens_the_server_and_metrics_are_not_for_others(front: Front) -> None:
    async with front.session.get(f"{front.url}/v1/models") as reply:
        assert reply.status == 401
    async with front.session.get(f"{front.url}/v1/models", headers=AUTH) as reply:
        assert reply.status == 200
    async with front.session.get(f"{front.url}/metrics", headers=AUTH) as reply:
        assert reply.status == 403
    async with front.session.get(f"{front.url}/v1/usage", headers=AUTH) as reply:
        assert reply.status == 200


async def test_another_host_name_is_refused(front: Front) -> None:
    async with front.session.get(
        f"{front.url}/v1/models", headers={**AUTH, "Host": "elsewhere.org"}
    ) as reply:
        assert reply.status == 403
        assert "PROXY_ALLOWED_HOSTS" in (await reply.json())["error"]["message"]


async def test_a_server_without_trusted_proxies_refuses_what_a_proxy_forwards(tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, api_key=KEY, allowed_hosts=NAME) as behind,
        nginx_in_front(behind, tmp_path) as front,
        front.session.get(f"{front.url}/v1/models", headers=AUTH) as reply,
    ):
        assert reply.status == 403
        assert "PROXY_TRUSTED_PROXIES" in (await reply.json())["error"]["message"]
