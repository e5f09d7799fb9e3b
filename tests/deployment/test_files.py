"""The files of deploy/ that nothing here can run: each has the form that its program reads, and names what exists."""

from __future__ import annotations

import plistlib
from pathlib import Path

from click.testing import CliRunner
from ruamel.yaml import YAML

from codex_proxy.cli import main
from codex_proxy.commands.service import UNIT, plist_text
from tests.deployment.examples import DEPLOY, ROOT, example


def test_the_unit_and_the_property_list_are_those_that_the_command_writes() -> None:
    path = "%h/.local/bin:/usr/local/bin:/usr/bin:/bin"
    unit = UNIT.format(command="%h/codex-proxy/scripts/start", workdir="%h/projects", path=path)
    assert example("codex-proxy.service") == unit
    home = Path("/Users/YOU")
    path = f"{home}/.local/bin:/opt/homebrew/bin:/usr/local/bin:/usr/bin:/bin"
    command = (str(home / "codex-proxy/scripts/start"),)
    assert example("codex-proxy.plist") == plist_text(command, home / "projects", path)


def test_the_property_list_keeps_every_argument_as_it_is() -> None:
    command = ("serve", "--upstream-url", "http://x/<&'\">")
    assert plistlib.loads(plist_text(command, Path("/w"), "/bin").encode())["ProgramArguments"] == list(
        command
    )


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
        assert f"server {name}:11435;" in example("balancer.conf")
    subnet = body["networks"]["default"]["ipam"]["config"][0]["subnet"]
    assert services["one"]["environment"]["PROXY_TRUSTED_PROXIES"] == subnet
    assert all(port.startswith("127.0.0.1:") for port in services["balancer"]["ports"])
    assert services["balancer"]["volumes"] == ["./balancer.conf:/etc/nginx/conf.d/default.conf:ro"]


def test_the_dockerfile_copies_what_exists_and_starts_a_command_that_exists() -> None:
    lines = example("Dockerfile").splitlines()
    assert (ROOT / "requirements/codex.txt").exists()
    assert any("requirements/codex.txt" in line for line in lines)
    assert 'CMD ["serve"]' in lines
    assert CliRunner().invoke(main, ["serve", "--help"]).exit_code == 0


def test_traefik_buffers_nothing_and_hides_the_metrics() -> None:
    body = YAML(typ="safe").load(example("traefik.yaml"))["http"]
    assert body["services"]["codex-proxy"]["loadBalancer"]["responseForwarding"]["flushInterval"] == -1
    assert "!Path(`/metrics`)" in body["routers"]["codex-proxy"]["rule"]
