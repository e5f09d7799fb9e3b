"""How the whole suite runs: fast tests first, and without those that only `--all` asks for.

A test is marked ``exhaustive`` where it proves once more, at a price, what cheaper tests have shown: hundreds of
kills, every way through a loop, every name. Of a parametrised test that is marked ``sampled(every=4)`` all cases
but the first of any four are. `scripts/test --all` runs these too, continuous integration a fifth of them.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import ssl
import sys
import tempfile
import zlib
from collections.abc import Generator, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from codex_proxy.parts import KNOWN, absent_parts
from tests.forked_fake import use_forks
from tests.missing import command_for, missing_package, require
from tests.postgres import EMPTY_CLUSTER, PostgresServer, server

HERE = Path(__file__).parent

FOLDERS = (
    *(
        "core",
        "surfaces",
        "agents",
        "tools",
        "access",
        "store",
        "runs",
        "fake",
        "responses",
        "http",
        "http_responses",
    ),
    *(
        "secrecy",
        "fuzz",
        "contract",
        "commands",
        "parts",
        "workers",
        "process",
        "faults",
        "scripts",
        "real",
        "process_left",
    ),
)
"""From what needs nothing to what starts real processes and waits for them. A folder that is not named: the middle."""

NEED_A_PART: dict[str, tuple[str, ...]] = {
    "clients/test_blocks.py": ("clients",),
    "clients/test_clients.py": ("clients",),
    "clients/test_machine_tools.py": ("clients",),
    "parts/managed_agents/test_resources.py": ("files",),
    "real/test_acp.py": ("acp",),
    "real/test_acp_apart.py": ("acp",),
    "real/test_acp_forks.py": ("acp",),
    "real/test_agent_errors.py": ("acp",),
    "real/test_agents_api.py": ("claude_code", "clients"),
    "real/test_agents_api_subagents.py": ("claude_code", "clients", "sessions"),
    "real/test_agents_api_whole.py": ("claude_code", "clients", "sessions"),
    "real/test_answers.py": ("claude_code", "clients", "sessions"),
    "real/test_approvals_of_claude.py": ("claude_code", "clients", "sessions"),
    "real/test_asks_on_the_page.py": ("claude_code", "clients", "sessions"),
    "real/test_beside_llama_cpp.py": ("upstream",),
    "real/test_cassettes.py": ("acp", "cassettes", "clients"),
    "real/test_chat_terminal.py": ("claude_code", "clients", "sessions"),
    "real/test_claude_code.py": ("claude_code", "clients"),
    "real/test_claude_code_as_client.py": ("claude_code", "clients"),
    "real/test_claude_code_sessions.py": ("claude_code", "clients", "sessions"),
    "real/test_client_text.py": ("acp", "claude_code", "clients"),
    "real/test_large_outputs.py": ("acp",),
    "real/test_managed_agents.py": ("claude_code", "clients", "managed_agents", "sessions"),
    "real/test_mcp_server.py": ("clients", "mcp_server", "sessions"),
    "real/test_nothing_left.py": ("acp", "claude_code", "clients"),
    "real/test_offered_tools.py": ("clients",),
    "real/test_ollama_packages.py": ("claude_code", "clients"),
    "real/test_recorded_twice.py": ("acp", "cassettes", "claude_code", "clients"),
    "real/test_run_on_codex.py": ("claude_code", "clients"),
    "real/test_several_agents.py": ("acp", "claude_code", "clients"),
    "real/test_snapshots.py": ("claude_code", "clients", "snapshots"),
    "real/test_tool_schemas.py": ("acp", "claude_code", "clients"),
    "real/test_toolset_of_claude.py": ("claude_code", "clients", "sessions"),
    "real/test_toolset_of_codex.py": ("sessions",),
}
"""Files that import a part, and are left out where it is absent. Others have to be collected without any part, and what
needs one has the mark `part`, or an agent of it as its case: there it has to fail without the part."""

# Where the suite runs in the background of a script these are ignored, and so they would be by all that it starts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

MEMORY = Path("/dev/shm")
"""Files in memory, on Linux. A store waits for the disk at each commit, for longer than the rest of its test takes."""
MEMORY_BYTES = 2 << 30
"""As much has to be free: a run needs a tenth of it at a time, since what a test that passed has written is removed."""

# A busy machine is slow now and then: neither a test nor the making of its examples is held to a time.
NO_HURRY: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default run", max_examples=20, **NO_HURRY)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", dest="run_all", help="run the exhaustive tests, too")
    parser.addoption(
        "--share",
        type=Share.parse,
        default=Share(),
        metavar="2/5",
        help="of the exhaustive tests of --all, so many",
    )


class Share(NamedTuple):
    """Which of the exhaustive tests run: each lies in one of `of` shares, told by its name alone."""

    number: int = 0
    of: int = 1

    @staticmethod
    def parse(text: str) -> Share:
        """Reads ``2/5``; any number is one of the five."""
        number, of = map(int, text.split("/"))
        return Share(number % of, of)

    def holds(self, nodeid: str) -> bool:
        return zlib.crc32(nodeid.encode()) % self.of == self.number


def pytest_configure(config: pytest.Config) -> None:
    share = config.getoption("share")
    settings.register_profile("all", max_examples=max(20, 300 // share.of), **NO_HURRY)
    settings.load_profile("all" if config.getoption("run_all") else "default run")
    if EMPTY_CLUSTER not in os.environ:  # the workers inherit it
        folder = tempfile.mkdtemp(prefix="pg-empty-")
        os.environ[EMPTY_CLUSTER] = folder
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
    if _memory_serves(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # where `tmp_path` is
    gc.disable()  # what is imported stays: to look at it again and again takes a fifth of the collection of tests


def _memory_serves(folder: Path) -> bool:
    """Whether files there can be made, hold as much as the tests write, and be programs (not so in most containers)."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return False
    programs = not os.statvfs(folder).f_flag & os.ST_NOEXEC
    return programs and shutil.disk_usage(folder).free >= MEMORY_BYTES


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """The `tmp_path` of what runs in a sandbox: this shows its child another /dev, and none of the files in memory."""
    with tempfile.TemporaryDirectory(prefix="codex-proxy-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of the tests of this process. Skips the test if there is none on this machine."""
    require("asyncpg")
    with server() as started:
        yield started


@pytest.fixture
async def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of a database with an empty store."""
    from tests.postgres import empty

    await empty(postgres_server.url)
    return postgres_server.url


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Leaves out the cases of a function that only `--all` runs, before items are made of them: there are more of these
    than of all others, and each worker makes an item in half a millisecond."""
    yield
    config, share = metafunc.config, metafunc.config.getoption("share")
    if len(metafunc._calls) > 1 and (not _runs_exhaustive(config) or share.of > 1):
        chosen = {id(case) for case in _default_cases(metafunc)}
        if _runs_exhaustive(config):
            node = metafunc.definition.nodeid
            chosen |= {id(case) for case in metafunc._calls if share.holds(f"{node}[{case.id}]")}
        metafunc._calls = [case for case in metafunc._calls if id(case) in chosen] or metafunc._calls[:1]


def _default_cases(metafunc: pytest.Metafunc) -> list[Any]:
    """The cases without the mark `exhaustive`; of a function that is marked `sampled`, every so many-th of these,
    beginning with the first or with the one that the mark names."""
    definition = metafunc.definition
    if definition.get_closest_marker("exhaustive"):
        return []
    cases = [case for case in metafunc._calls if not any(mark.name == "exhaustive" for mark in case.marks)]
    sampled = definition.get_closest_marker("sampled")
    if sampled is None or not cases:
        return cases
    every = min(sampled.kwargs["every"], len(cases))
    return cases[sampled.kwargs.get("first", 0) % every :: every]


def _runs_exhaustive(config: pytest.Config) -> bool:
    """Whether exhaustive tests run: all of them, or one that is named."""
    return bool(config.getoption("run_all")) or any("::" in argument for argument in config.args)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.path))
    _check_fixtures(items)
    share = config.getoption("share")
    if not _runs_exhaustive(config) or share.of > 1:
        runs = share.holds if _runs_exhaustive(config) else lambda _: False
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive") or runs(item.nodeid)]
    for item in items:
        if absent := _needed_parts(item) & absent_parts().keys():
            # A test of several parts need not fail where one of them is there, nor a case that has an agent's name, nor
            # each test of a file: those are not run.
            marks = [mark for mark in item.own_markers if mark.name == "part"]
            fails = any(absent.issuperset(mark.args) for mark in marks)
            item.add_marker(pytest.mark.xfail(strict=fails, run=fails, reason=f"{min(absent)} is absent"))


def _needed_parts(item: pytest.Item) -> set[str]:
    """Returns the parts that a test needs: its mark names them, or it is the case of an agent or a store of one."""
    call = getattr(item, "callspec", None)
    cases = {value for value in call.params.values() if isinstance(value, str)} if call is not None else set()
    of_cases = {name for name, known in KNOWN.items() if not cases.isdisjoint((*known.agents, *known.stores))}
    return of_cases | {name for mark in item.iter_markers("part") for name in mark.args}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skips a file or folder that imports a package which only some tests need, where that is not installed; or a part
    of the program that is absent.
    """
    report = yield
    place = collector.path.relative_to(HERE).as_posix()
    if absent := {*NEED_A_PART.get(place, ())} & absent_parts().keys():
        found = re.search(r"No module named '(?:codex_proxy|tests)\.parts\.(\w+)", str(report.longrepr))
        if report.failed and found and found[1] in absent:
            report.outcome, report.longrepr = "skipped", (place, 0, f"Skipped: the part {found[1]} is absent")
        elif isinstance(collector, pytest.Module):
            report.outcome = "failed"
            report.longrepr = f"{place} can be imported without {min(absent)}: take it out of NEED_A_PART"
    name = missing_package(str(report.longrepr)) if report.failed else ""
    if name:
        report.outcome, report.longrepr = "skipped", _skipped(collector.path, name)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The same for a test that imports it when it runs."""
    report = yield
    name = missing_package(call.excinfo.exconly()) if call.excinfo is not None else ""
    if name:
        report.outcome, report.longrepr = "skipped", _skipped(item.path, name)
    return report


def _skipped(path: Path, package: str) -> tuple[str, int, str]:
    place = path.relative_to(HERE.parent)
    return str(place), 0, f"Skipped: {package} is not installed: {command_for(place)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which packages are missing, and what was skipped for it."""
    left_out: dict[str, set[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        found = re.search(r"Skipped: (\w+) is not installed: ", str(report.longrepr))
        if found:
            left_out.setdefault(found[1], set()).add(report.nodeid.partition("::")[0])
    for package, places in sorted(left_out.items()):
        terminalreporter.write_line(f"skipped without {package}: {' '.join(sorted(places))}")
    if left_out:
        terminalreporter.write_line("scripts/test --all installs these packages, and runs every test")


def _check_fixtures(items: list[pytest.Item]) -> None:
    """Stops the run if a test, also one that is left out, names a fixture that does not exist."""
    for item in items:
        if isinstance(item, pytest.Function):
            unknown = set(item.fixturenames) - item._fixtureinfo.name2fixturedefs.keys() - {"request"}
            if unknown:
                raise pytest.UsageError(f"{item.nodeid} names a fixture that does not exist: {min(unknown)}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is loaded by now stays: the collector need not look at it, and it looks seldom at what a test makes."""
    if not _runs_exhaustive(session.config):
        use_forks()
    _load_certificates_once()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def _load_certificates_once() -> None:
    """Each client of an SDK loads the machine's certificates, and nearly each test makes one: it takes longer (20 ms)
    than most tests. Clients of one process share them, but for those of a test that names others."""
    if "httpx2" not in sys.modules:
        return
    import httpcore2

    load = httpcore2.default_ssl_context

    @cache
    def loaded(trust_env: bool, file: str | None, folder: str | None) -> ssl.SSLContext:
        return load(_trust_env=trust_env)

    def context(*, _trust_env: bool = True) -> ssl.SSLContext:
        return loaded(_trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    httpcore2.default_ssl_context = context


@cache
def _place(path: Path) -> int:
    folder = path.relative_to(HERE).parts[0]
    return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS) // 2
