"""The files of deploy/ that nothing here can run: each has the form that its program reads, and names what exists."""

from __future__ import annotations

import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from codex_proxy.app.start_checks import check
from codex_proxy.app.system import SystemClock
from codex_proxy.cli import main
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import load, variables_of
from tests.deployment.examples import DEPLOY, ROOT, example
from tests.waiting import PATIENCE

HADOLINT: Final = shutil.which("hadolint", path=str(Path(sys.executable).parent))
LAUNCHD: Final = {
    "EnvironmentVariables": dict,
    "ExitTimeOut": int,
    "KeepAlive": dict,
    "Label": str,
    "ProgramArguments": list,
    "RunAtLoad": bool,
    "WorkingDirectory": str,
}
"""The keys of launchd.plist(5) that are used, with their types: launchd ignores a key that it does not know."""
TRAEFIK: Final[dict[str, Any]] = {
    "http": {
        "routers": {"*": dict.fromkeys(("rule", "entryPoints", "tls", "service"))},
        "services": {
            "*": {"loadBalancer": {"servers": {"url": None}, "responseForwarding": {"flushInterval": None}}}
        },
    }
}
"""The keys of Traefik's file provider that are used; `*` is any name, None any value."""


def test_launchd_knows_every_key_of_the_property_list() -> None:
    body = plistlib.loads(example("codex-proxy.plist").encode())
    assert {name: type(value) for name, value in body.items()} == LAUNCHD
    assert body["KeepAlive"] == {"SuccessfulExit": False}


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed (it has no wheel for this system)")
def test_hadolint_has_nothing_to_say_about_the_dockerfile() -> None:
    assert HADOLINT is not None
    said = subprocess.run(
        [HADOLINT, "--no-color", str(DEPLOY / "Dockerfile")], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (said.stdout + said.stderr, said.returncode) == ("", 0)


def test_compose_has_only_keys_and_values_of_the_compose_specification() -> None:
    compose = pytest.importorskip("compose_spec", reason="it has no wheel for this system")
    # `docker compose` puts the variables into the text's places before it reads them.
    text = re.sub(r"\$\{(\w+)[^}]*\}", r"/\1", example("compose.yaml"))
    assert compose.PyCompose.from_yaml(text).service_names() == ["one", "two", "balancer", "postgres"]
    with pytest.raises(ValueError, match="restrat"):
        compose.PyCompose.from_yaml(text.replace("    restart:", "    restrat:"))


def test_compose_has_two_proxies_with_one_store_and_mounts_the_volumes_of_the_dockerfile() -> None:
    body = YAML(typ="safe").load(example("compose.yaml"))
    services = body["services"]
    for name in ("one", "two"):
        service = services[name]
        context = (DEPLOY / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
        mounted = {volume.rsplit(":", 1)[1] for volume in service["volumes"]}
        (line,) = [line for line in example("Dockerfile").splitlines() if line.startswith("VOLUME ")]
        # Each container has a state folder of its own: what is shared is in the database.
        assert mounted == {
            folder for folder in YAML(typ="safe").load(line.removeprefix("VOLUME ")) if "state" not in folder
        }
        assert service["environment"]["PROXY_STORE"].endswith("@postgres/codex_proxy")
        assert f"server {name}:11435 " in example("balancer.conf")
    subnet = body["networks"]["default"]["ipam"]["config"][0]["subnet"]
    assert services["one"]["environment"]["PROXY_TRUSTED_PROXIES"] == subnet
    assert all(port.startswith("127.0.0.1:") for port in services["balancer"]["ports"])
    assert services["balancer"]["volumes"] == ["./balancer.conf:/etc/nginx/conf.d/default.conf:ro"]


@pytest.mark.part("machines")
def test_whoever_stops_the_server_waits_until_it_has_stopped() -> None:
    from codex_proxy.parts.machines.supervisor import STOP_SECONDS

    within = Settings.model_fields["drain_ms"].default / 1000 + STOP_SECONDS
    services = YAML(typ="safe").load(example("compose.yaml"))["services"]
    unit = re.search(r"^TimeoutStopSec=(\d+)$", example("codex-proxy.service"), re.MULTILINE)
    command = re.search(r"docker run .*--stop-timeout (\d+) ", (ROOT / "docs/operations.md").read_text())
    assert unit
    assert command
    allowed = {
        "systemd": int(unit[1]),
        "launchd": plistlib.loads(example("codex-proxy.plist").encode())["ExitTimeOut"],
        "docker": int(command[1]),
        **{name: int(services[name]["stop_grace_period"].removesuffix("s")) for name in ("one", "two")},
    }
    assert {name: seconds for name, seconds in allowed.items() if seconds < within} == {}


@pytest.mark.part("machines")
def test_compose_refers_to_what_it_has_and_sets_what_the_server_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = YAML(typ="safe").load(example("compose.yaml"))
    volumes: set[str] = set()
    for service in body["services"].values():
        assert set(service.get("depends_on", ())) <= set(body["services"])
        volumes |= {source.split(":", 1)[0] for source in service["volumes"] if source[0] not in "./$"}
    assert volumes == set(body["volumes"])
    given = body["services"]["one"]["environment"]
    for line in example("Dockerfile").splitlines():
        if line.startswith("ENV "):
            given |= dict(each.split("=", 1) for each in line.removeprefix("ENV ").split())
    for name, value in given.items():
        assert any(name in variables_of(field) for field in Settings.model_fields), name
        # What Compose puts in place of `${NAME:?what to set}`.
        monkeypatch.setenv(name, re.sub(r"\$\{[^}]*\}", "a-secret-of-some-length", str(value)))
    monkeypatch.setenv("PROXY_WORKDIR", str(tmp_path))
    settings = load({"state_dir": tmp_path / "state"}, None)
    check(settings, SystemClock(), {})
    assert (settings.in_database, settings.host) == (True, "0.0.0.0")
    assert any(
        line.startswith("asyncpg==") for line in (ROOT / "requirements/codex.txt").read_text().splitlines()
    )


def test_the_dockerfile_copies_what_exists_and_starts_a_command_that_exists() -> None:
    lines = example("Dockerfile").splitlines()
    assert (ROOT / "requirements/codex.txt").exists()
    assert any("requirements/codex.txt" in line for line in lines)
    assert 'CMD ["serve"]' in lines
    (volumes,) = [line for line in lines if line.startswith("VOLUME ")]
    assert '/codex-proxy"' in volumes
    assert '/codex-proxy-worktrees"' in volumes
    assert CliRunner().invoke(main, ["serve", "--help"]).exit_code == 0


def unknown(body: Any, known: Any, path: str = "") -> list[str]:
    """The paths of the keys of a configuration that are not known."""
    if isinstance(body, list):
        return [key for each in body for key in unknown(each, known, path)]
    if known is None or not isinstance(body, dict):
        return []
    missing = [f"{path}.{name}" for name in body if name not in known and "*" not in known]
    inner = [(each, known.get(name, known.get("*")), f"{path}.{name}") for name, each in body.items()]
    return missing + [key for each in inner for key in unknown(*each)]


def test_traefik_knows_every_key_and_buffers_nothing_and_hides_the_metrics() -> None:
    whole = YAML(typ="safe").load(example("traefik.yaml"))
    assert unknown(whole, TRAEFIK) == []
    assert unknown({"http": {"routers": {"x": {"rul": ""}}}}, TRAEFIK) == [".http.routers.x.rul"]
    body = whole["http"]
    (router,) = body["routers"].values()
    assert router["service"] in body["services"]
    assert body["services"]["codex-proxy"]["loadBalancer"]["responseForwarding"]["flushInterval"] == -1
    assert "!Path(`/metrics`)" in body["routers"]["codex-proxy"]["rule"]
