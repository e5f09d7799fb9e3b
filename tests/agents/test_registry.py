"""The registry: which agent serves, what a plugin must be, and what a start imports."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from codex_proxy.agents.configured.agents import configured_agents
from codex_proxy.agents.names import BUILT_IN, check_name, names
from codex_proxy.agents.registry import agent_able_to, chosen_spec, specs
from codex_proxy.agents.spec import NoAgentError
from codex_proxy.app.application import catalog_of
from codex_proxy.app.server import make_server
from codex_proxy.commands.doctor import examine
from codex_proxy.core.account import AgentModel
from codex_proxy.parts import parts
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.protected_paths import write_conflict
from codex_proxy.surfaces.models import list_body, resolve
from tests.agents.plugin_package import write_entry_point, write_plugin

PLUGIN = "parrot_plugin"
REFERENCE = f"{PLUGIN}:SPEC"
CODEX = ("auto", "codex-app-server", "codex-exec", "codex-proto")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the good plugin in it."""
    code = tmp_path / "code"
    code.mkdir()
    write_plugin(code, monkeypatch, PLUGIN)
    return tmp_path


def settings_of(folder: Path, **more: Any) -> Settings:
    return Settings(port=0, workdir=folder, state_dir=folder / "state", **more)


def refusal_of(folder: Path, **more: Any) -> str:
    """What is said of a plugin that cannot be used."""
    with pytest.raises(NoAgentError) as error:
        chosen_spec(settings_of(folder, **more))
    return str(error.value)


def test_every_line_of_the_registry_leads_to_the_agent_of_that_name() -> None:
    assert [spec.name for spec in specs()] == list(BUILT_IN)
    for name in names():
        assert chosen_spec(Settings(agent=name)).name == name


def test_an_agent_that_can_do_it_is_found_for_who_cannot() -> None:
    assert agent_able_to("client_tools") == "codex-app-server"


def test_a_name_that_no_agent_has_is_reported_with_those_that_there_are() -> None:
    with pytest.raises(ValidationError) as error:
        Settings(agent="nobody")
    [told] = error.value.errors()
    assert told["loc"] == ("agent",)
    assert all(word in told["msg"] for word in ("nobody", "--agent-plugin", *names()))


def test_a_plugin_serves_by_itself_and_by_its_name(folder: Path) -> None:
    assert chosen_spec(settings_of(folder, agent_plugin=REFERENCE)).name == "parrot"
    assert chosen_spec(settings_of(folder, agent_plugin=REFERENCE, agent="parrot")).name == "parrot"


def test_a_built_in_agent_that_is_named_serves_and_the_plugin_is_not_imported(folder: Path) -> None:
    assert chosen_spec(settings_of(folder, agent_plugin=REFERENCE, agent="fake")).name == "fake"
    assert PLUGIN not in sys.modules


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nowhere_to_be_found:SPEC", "Install the package of nowhere_to_be_found:SPEC"),
        (f"{PLUGIN}:MISSING", f"has no MISSING. Name the AgentSpec in it: {PLUGIN}:NAME"),
        (f"{PLUGIN}:NOTHING", "not an AgentSpec (nor a Part with agents) but a value of the type int"),
        (f"{PLUGIN}:TAKEN", "Give it a name"),
        (PLUGIN, "write MODULE:SPEC"),
        (f"../{PLUGIN}:SPEC", "write MODULE:SPEC"),
    ],
)
def test_a_plugin_that_is_none_is_refused_by_name_with_what_to_do(
    folder: Path, reference: str, says: str
) -> None:
    told = refusal_of(folder, agent_plugin=reference)
    assert says in told
    assert reference in told or reference.partition(":")[0] in told
    assert "--agent-plugin" in told


@pytest.mark.parametrize("source", ["raise RuntimeError('boom')", "raise SystemExit('boom')", "import ="])
def test_a_plugin_that_fails_while_it_is_imported_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    write_plugin(folder / "code", monkeypatch, "broken_plugin", source)
    told = refusal_of(folder, agent_plugin="broken_plugin:SPEC")
    assert "broken_plugin:SPEC cannot be imported" in told


def test_a_plugin_under_another_name_than_asked_for_is_refused(folder: Path) -> None:
    assert "Use --agent parrot" in refusal_of(folder, agent_plugin=REFERENCE, agent="cockatoo")


def test_an_agent_of_an_installed_package_is_chosen_by_its_name(folder: Path) -> None:
    write_entry_point(folder / "code", "parrot", REFERENCE)
    assert chosen_spec(settings_of(folder, agent="parrot")).name == "parrot"
    with pytest.raises(ValidationError, match="parrot"):  # which there is
        settings_of(folder, agent="nobody")


@pytest.mark.parametrize("name", names())
def test_an_installed_package_cannot_take_the_name_of_a_built_in_agent(folder: Path, name: str) -> None:
    write_entry_point(folder / "code", name, REFERENCE)
    assert chosen_spec(settings_of(folder, agent=name)).summary != "repeats"
    assert PLUGIN not in sys.modules


def test_an_installed_package_that_nobody_names_is_not_imported(folder: Path) -> None:
    write_entry_point(folder / "code", "parrot", REFERENCE)
    assert chosen_spec(settings_of(folder)).name == "auto"
    assert PLUGIN not in sys.modules


async def test_a_plugin_that_fails_while_its_agent_is_made_ends_the_start_with_a_sentence(
    folder: Path,
) -> None:
    with pytest.raises(NoAgentError, match=r"parrot_plugin:SPEC failed .*no agent comes of this"):
        await make_server(settings_of(folder, agent_plugin=REFERENCE), {})


async def test_doctor_shows_the_plugin_and_what_it_finds(folder: Path) -> None:
    flags = {"port": 0, "workdir": folder, "state_dir": folder / "state", "agent_plugin": REFERENCE}
    checks = {check.name: check for check in (await examine(flags, None, {})).checks}
    assert checks["agent plugin"].facts == {"plugin": REFERENCE, "agent": "parrot"}
    assert checks["agent"].message == "It is there."


@pytest.mark.parametrize("sandbox", ["read-only", "workspace-write"])
async def test_doctor_says_what_is_wrong_with_a_plugin_and_goes_on(folder: Path, sandbox: str) -> None:
    (folder / "work").mkdir()
    flags = {"port": 0, "workdir": folder / "work", "state_dir": folder / "state", "sandbox": sandbox}
    checkup = await examine({**flags, "agent_plugin": "nowhere_to_be_found:SPEC"}, None, {})
    checks = {check.name: check for check in checkup.checks}
    assert checks["agent plugin"].status == "failed"
    assert any("nowhere_to_be_found:SPEC" in step for step in checkup.next_steps)
    assert checks["workspace"].status == "ok"


def test_a_sandbox_that_writes_is_kept_from_the_code_of_a_plugin(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = folder / "code" / "parrot_package"
    (package / "work").mkdir(parents=True)
    (package / "__init__.py").touch()
    write_plugin(package, monkeypatch, "agent")
    settings = settings_of(
        package / "work", sandbox="workspace-write", agent_plugin="parrot_package.agent:SPEC", store="off"
    )
    settings.state_dir = folder / "state"
    told = write_conflict(settings, {})
    assert told is not None
    assert "the agent plugin's code" in told


@pytest.mark.exhaustive
@pytest.mark.parametrize("agent", ["fake", "codex-proto"])
def test_a_start_imports_the_agent_that_serves_and_no_other(folder: Path, agent: str) -> None:
    program = (
        "import sys\n"
        "from codex_proxy.settings.fields import Settings\n"
        "from codex_proxy.agents.registry import chosen_spec\n"
        "import codex_proxy.app.server\n"
        f"chosen_spec(Settings(agent={agent!r}))\n"
        "print(*(name for name in sys.modules if name.startswith('codex_proxy.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    modules = {name: line.partition(":")[0] for name, line in BUILT_IN.items()}
    # The fake agent also speaks protocols of parts.
    dialects = [line for part in parts() for line in part.fake_dialects.values()] if agent == "fake" else []
    own = {modules[agent], *(line.partition(":")[0] for line in dialects)}
    settings = {
        part.settings.partition(":")[0] for part in parts() if part.settings
    }  # which every start reads
    assert imported & set(modules.values()) == own | settings & set(modules.values())
    of_codex = {
        name for name in imported if name.startswith("codex_proxy.agents.codex") and name.count(".") > 2
    }
    # What `protected_paths` asks for the binary is there for every agent, with the table of tested releases that it
    # reads; and the specs of all Codex agents name the capabilities of app-server. The rest comes with the agent.
    always = {
        f"codex_proxy.agents.{name}"
        for name in ("codex.program", "codex.tested", "codex_app_server.contract")
    }
    assert {name for name in of_codex if not name.endswith("specs")} <= always


def test_a_misspelt_agent_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(ValueError, match=r"no agent 'codex-prot'\. Did you mean codex-proto\?"):
        check_name("codex-prot", None)
    with pytest.raises(ValueError, match=r"no agent 'xyz'\. The agents are auto"):
        check_name("xyz", None)


class AgentWithModels:
    """An agent that lists these models, and takes no others."""

    any_model = False
    capabilities: frozenset[str] = frozenset()
    members: Mapping[str, Any] = {}
    missing_features: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, name: str, *models: AgentModel) -> None:
        self.name = name
        self._models = models

    def models(self) -> tuple[AgentModel, ...]:
        return self._models


@pytest.mark.parametrize("env", ["prod", "dev"])
@pytest.mark.parametrize(
    "agent", [*names(), "several", pytest.param("several others", marks=pytest.mark.part("upstream"))]
)
def test_only_an_agent_that_is_codex_lists_codex_5_and_no_list_is_empty(agent: str, env: str) -> None:
    spoken: dict[str, Any] = {"agent": agent}
    if agent.startswith("several"):
        first = "codex" if agent == "several" else "up"
        spoken = {
            "agent": first,
            "agents": {"codex": {"agent": "codex-exec"}},
            "upstreams": {"up": {"url": "http://127.0.0.1:9/v1"}},
        }
    named = {each.name: each for each in configured_agents(Settings(**spoken))}
    is_codex = next(iter(named.values())).spec.name in (*CODEX, "fake")
    unlike_own = AgentModel(id="default"), AgentModel(id="codex-5")  # as another such server lists them
    for models in (
        (),
        (AgentModel(id="own", is_default=True),),
        (AgentModel(id="own", is_default=True), *unlike_own),
    ):
        first_name = next(iter(named))
        of_each = {
            name: AgentWithModels(name, *(models[:1] if name == first_name else models)) for name in named
        }
        source: Any = of_each.get("") or AgentWithModels(
            "several",
            *(
                msgspec.structs.replace(model, id=f"{name}/{model.id}", agent=name)
                for name, each in of_each.items()
                for model in each.models()
            ),
        )
        source.members = {} if "" in of_each else of_each
        catalog = catalog_of(Settings(), source, named)
        entries = list_body(catalog, env, 0)["data"]
        listed = [entry["id"] for entry in entries]
        assert listed
        assert (entries[0]["owned_by"] == "codex") is is_codex
        assert any(re.match("code[xv]-5", name) for name in listed) is is_codex
        for name in (*listed, "codex-5", "codev-5-high", "default"):
            resolve(name, catalog)
        default = {resolve(name, catalog).agent_model for name in ("codex-5", "default")}
        assert len(default) == 1
