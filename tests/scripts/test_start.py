"""`scripts/start`: one command from a fresh machine to a server, and what it says where it cannot."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.scripts.checkout import Checkout
from tests.waiting import PATIENCE

CODEX = "#!/bin/sh\n"


def test_the_first_start_makes_the_environment_and_becomes_the_server(checkout: Checkout) -> None:
    done = checkout.run("start")
    assert done.returncode == 0, done.stderr
    lock = checkout.folder / "requirements" / "runtime.txt"
    venv = checkout.folder / ".venv"
    assert f"-m venv --clear {venv}" in checkout.calls
    assert [line.replace("--progress-bar off ", "") for line in checkout.installs] == [
        f"-m pip install -r {lock}",
        f"-m pip install --quiet --no-deps --editable {checkout.folder}",
    ]
    assert done.stdout.splitlines()[2] == "serve"
    assert "Making the environment" in done.stderr
    assert "Installing the locked packages of requirements/runtime.txt" in done.stderr
    count = len(lock.read_text().splitlines())
    assert f"  1 of {count}: aiohttp==1.2.3\n" in done.stderr


def test_each_step_that_may_be_silent_for_long_says_every_few_seconds_that_it_is_at_work(
    checkout: Checkout, tmp_path: Path
) -> None:
    """Each step waits here until two pauses of five seconds have passed."""
    pauses = tmp_path / "pauses"
    os.mkfifo(pauses)
    (checkout.tools / "sleep").unlink()
    checkout.install_program("sleep", f"#!/bin/sh\n: >'{pauses}'\n")
    done = checkout.run("start", SLOW=str(pauses))
    lines = done.stderr.splitlines()
    steps = ("Making the environment", "Installing the locked packages", "Installing this package")
    for step in steps:
        [at] = [place for place, line in enumerate(lines) if line.startswith(step)]
        assert lines[at + 1] == "  ... 5 s", step
    assert checkout.served(done)[0] == "serve"


@pytest.mark.exhaustive
def test_a_second_start_installs_nothing(checkout: Checkout) -> None:
    checkout.run("start")
    checkout.forget()
    assert checkout.served(checkout.run("start"))[0] == "serve"
    assert checkout.installs == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("changed", ["requirements/runtime.txt", "pyproject.toml"])
def test_what_the_environment_is_made_from_is_installed_again_when_it_changes(
    checkout: Checkout, changed: str
) -> None:
    checkout.run("start")
    checkout.forget()
    with (checkout.folder / changed).open("a") as file:
        file.write("# another line\n")
    checkout.run("start")
    assert len(checkout.installs) == 2


@pytest.mark.exhaustive
def test_with_codex_installs_the_extra_and_is_no_flag_of_the_server(checkout: Checkout) -> None:
    served = checkout.served(checkout.run("start", "--with-codex", "--port", "0"))
    assert served[:3] == ["serve", "--port", "0"]
    assert "requirements/codex.txt" in checkout.installs[0]


@pytest.mark.exhaustive
def test_a_plain_start_takes_nothing_away_that_an_earlier_one_installed(checkout: Checkout) -> None:
    checkout.run("start", "--with-codex")
    checkout.forget()
    checkout.run("start")
    assert checkout.installs == []


def locks_of(checkout: Checkout) -> list[str]:
    """The locks that a script has installed since the last call."""
    found = re.findall(r"requirements/(\w+)\.txt", "".join(checkout.installs))
    checkout.forget()
    return found


def test_scripts_test_installs_what_most_tests_need_and_for_all_tests_the_rest(checkout: Checkout) -> None:
    (checkout.folder / ".mypy_cache").mkdir()
    assert "pytest ..." in checkout.run("test").stderr
    assert locks_of(checkout) == ["test"]
    checkout.run("start")
    assert locks_of(checkout) == ["runtime", "test"]
    checkout.run("test", "--all")
    assert locks_of(checkout) == ["dev"]
    checkout.run("test")
    assert locks_of(checkout) == []


def test_types_are_checked_but_for_those_of_packages_that_only_all_tests_have(checkout: Checkout) -> None:
    (checkout.folder / ".mypy_cache").mkdir()

    def told_mypy() -> list[str]:
        found = [line for line in checkout.calls if line.startswith("mypy|")]
        checkout.forget()
        return found

    checkout.run("test")
    assert told_mypy() == [
        "mypy|--disable-error-code=untyped-decorator|--disable-error-code=import-not-found|"
    ]
    checkout.run("test", "--all")
    assert told_mypy() == ["mypy|"]


@pytest.mark.exhaustive
def test_flags_go_through_to_a_server_in_the_folder_where_the_user_stands(
    checkout: Checkout, tmp_path: Path
) -> None:
    given = ("--port", "0", "--workdir", "/a b/$c", "--agent=fake", "--api-key", "")
    here = tmp_path / "my work"
    here.mkdir()
    done = checkout.run("start", *given, cwd=here)
    assert checkout.served(done) == ["serve", *given]
    assert done.stdout.splitlines()[1] == str(here)


@pytest.mark.exhaustive
def test_a_link_to_it_works_from_anywhere(checkout: Checkout, tmp_path: Path) -> None:
    link = tmp_path / "serve-codex"
    os.symlink("a checkout/scripts/start", link)
    assert checkout.served(checkout.run(link))[0] == "serve"


@pytest.mark.exhaustive
def test_the_server_takes_the_place_of_the_script_so_that_ctrl_c_is_its_own(checkout: Checkout) -> None:
    checkout.run("start")
    script = checkout.folder / "scripts" / "start"
    with subprocess.Popen(
        [str(script)],
        env=checkout.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{process.pid}\n"
        process.communicate(timeout=PATIENCE)


def test_without_a_codex_the_fake_agent_serves_and_it_says_so_loudly(checkout: Checkout) -> None:
    done = checkout.run(
        "start", "--port", "0", PROXY_AGENT="", CODEX_BIN=""
    )  # an empty variable names no agent
    assert checkout.served(done) == ["serve", "--port", "0", "--agent", "fake"]
    assert "the embedded FAKE agent will serve: its answers are made up" in done.stderr


def test_with_a_codex_on_path_nothing_is_put_in_its_place(checkout: Checkout) -> None:
    checkout.install_program("codex", CODEX)
    done = checkout.run("start")
    assert checkout.served(done) == ["serve"]
    assert "FAKE" not in done.stderr


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (["--agent", "codex-app-server"], {}),
        (["--agent=codex-proto"], {}),
        (["--codex-bin", "/opt/codex"], {}),
        (["--codex-bin=/opt/codex"], {}),
        ([], {"PROXY_AGENT": "codex-proto"}),
        ([], {"PROXY_AGENT_PLUGIN": "my_agent:SPEC"}),
        ([], {"CODEX_BIN": "/opt/codex"}),
        (["--agent-plugin", "my_agent:SPEC"], {}),
        (["--config", "settings.toml"], {}),
    ],
    ids=str,
)
def test_an_agent_that_is_named_is_never_replaced(
    checkout: Checkout, tmp_path: Path, flags: list[str], variables: dict[str, str]
) -> None:
    (tmp_path / "settings.toml").write_text('agent = "codex-app-server"\n')
    assert checkout.served(checkout.run("start", *flags, cwd=tmp_path, **variables)) == ["serve", *flags]


def test_help_before_the_first_start_installs_nothing_and_names_the_settings(checkout: Checkout) -> None:
    done = checkout.run("start", "--help")
    assert done.returncode == 0
    assert "scripts/start [--with-codex]" in done.stdout
    assert "docs/configuration.md" in done.stdout
    assert checkout.calls == []


@pytest.mark.exhaustive
def test_help_describes_the_script_and_the_server_and_warns_of_no_fake_agent(checkout: Checkout) -> None:
    checkout.run("start")
    done = checkout.run("start", "--help")
    assert "scripts/start [--with-codex]" in done.stdout
    assert done.stdout.splitlines()[-1] == "--help"
    assert "FAKE" not in done.stderr


def test_without_a_python_it_says_what_to_install(checkout: Checkout) -> None:
    (checkout.tools / "python3").unlink()
    done = checkout.run("start")
    assert done.returncode == 1
    assert done.stderr == (
        "start: no python3 on PATH. Install Python 3.11 or newer, or name one with PYTHON=/path/to/python3.\n"
    )


def test_an_old_python_is_named_with_its_version(checkout: Checkout) -> None:
    done = checkout.run("start", TOO_OLD="1")
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed, and python3 is Python 3.9.2." in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_python_without_venv_names_the_package_to_install(checkout: Checkout) -> None:
    done = checkout.run("start", NO_VENV="1")
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr


def test_a_failed_install_ends_with_a_sentence_and_is_tried_again(checkout: Checkout) -> None:
    done = checkout.run("start", PIP_FAILS="1")
    assert done.returncode == 1
    assert "pip could not install requirements/runtime.txt" in done.stderr.splitlines()[-1]
    checkout.forget()
    assert checkout.served(checkout.run("start"))[0] == "serve"
    assert len(checkout.installs) == 2
