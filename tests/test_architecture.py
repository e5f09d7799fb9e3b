"""The shape of the project, read off its source: layers, sans-IO, budgets, and where the world comes in."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path

import pytest

from codex_proxy.agents.names import BUILT_IN
from codex_proxy.parts import KNOWN
from tests.syntax import parse

ROOT = Path(__file__).parent.parent

MAY_IMPORT: dict[str, frozenset[str]] = {
    "core": frozenset(),
    "agents": frozenset({"process", "core", "files"}),
    "surfaces": frozenset({"core"}),
    "tools": frozenset({"core"}),
    "files": frozenset(),
    "process": frozenset({"core", "files"}),
    "store": frozenset({"core", "files"}),
    "mcp": frozenset({"process", "core"}),
    "workers": frozenset({"tools", "core"}),
    "runs": frozenset({"process", "agents", "tools", "workers", "core", "files"}),
    "admission": frozenset({"runs", "workers", "agents.agent", "surfaces", "core", "files"}),
    "responses": frozenset({"admission", "runs", "workers", "store", "surfaces", "core"}),
    "http": frozenset(
        {"responses", "admission", "runs", "workers", "agents.agent", "store", "surfaces", "core", "files"}
    ),
}
"""The layers of docs/architecture.md; of `agents`, `http` knows the interface only. Modules beside these packages
(`app`, `cli`, ...) may import everything, and nothing below imports them."""

WIRING = frozenset({"app", "commands", "parts", "settings"})
"""Packages that belong to those modules beside the layers."""

AGENT_WIRING = (
    r"codex_proxy\.agents\.(registry|spec)",
    r"codex_proxy\.agents\.\w+\.(checks|settings|(\w+_)?(specs?|setup|installation))",
    r"codex_proxy\.agents\.configured\.agents",
)
"""Modules of `agents` that belong to them, too: what is made from settings, and what `doctor` runs."""
AGENT_WIRING_MAY_IMPORT = frozenset({"settings"})
"""The packages beside the layers that they may import, and no others."""
IMPORT_COMMANDS = frozenset({"cli", "commands", "parts"})

PARTS_MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "managed_agents": ("sessions",),
    "mcp_server": ("sessions",),
    "snapshots": ("sessions",),
    "cassettes": ("acp", "upstream"),  # dialects read cassettes of version 1
}
"""The other parts that a part may import."""
PART_LAYERS = {
    "claude_code": "agents",
    "acp": "agents",
    "mcp": "mcp",
    "machines": "store",
    "upstream": "agents",
}
"""The layers of parts, whose rules they keep as if they were packages there. Others belong to the first row."""
PART_WIRING = (
    r"codex_proxy\.parts\.mcp\.(settings|configured_servers|tool_source)",
    r"codex_proxy\.parts\.machines(?!\.postgresql)[\w.]*",
    r"codex_proxy\.parts\.\w+\.server_part",
    r"codex_proxy\.parts\.upstream\.(endpoints|forms)",  # of requests that are no turns
    r"codex_proxy\.parts\.\w+(?!\.)",  # the object `PART` and the settings
)
"""Modules of these parts that belong to the first row, too."""

STAND_ALONE = ("agents", "surfaces")
"""Layers whose own packages (one per agent, one per API) do not know each other."""
SHARED_PACKAGES = frozenset(
    {
        "agents.codex",
        *("surfaces.answers", "surfaces.requests"),
        *(
            "agents.configured",
            "agents.confinement",
            "agents.shared",
            "agents.process_pool",
            "agents.sessions",
        ),
    }
)
"""Packages of those layers that their neighbours may import."""

SANS_IO = frozenset({"core", "agents", "surfaces", "tools"})
DRIVES_CHILDREN = frozenset(
    {
        "agents.agent",
        "core.beside_the_loop",
        "agents.sessions.session",
        "agents.configured.router",
        "agents.sessions.child_per_turn",
        "agents.sessions.shared_process",
        "agents.process_pool.pool",
        "agents.process_pool.processes",
        "agents.sessions.account_limits",
        "agents.confinement.confine",
        "agents.confinement.plain_turns",
        "agents.codex.command_sandbox",
        "agents.codex.program",
        "agents.codex.plain_home",
        "agents.codex_app_server.agent",
        "agents.codex_app_server.binary_check",
        "parts.claude_code.agent",
        "parts.claude_code.launch",
        "parts.upstream.agent",
        "parts.upstream.server",
        "parts.upstream.config",
        "parts.upstream.connections",
        "parts.upstream.exchange",
        "parts.upstream.transport",
        "parts.acp.agent",
        "parts.acp.process",
        "parts.acp.stored_sessions",
        "parts.acp.tool_server",
        "parts.acp.forwarder",
    }
)
"""The modules of sans-IO layers that do IO: whatever of an agent starts, drives or asks its processes."""
DOES_IO = frozenset(
    {
        *(
            "asyncio",
            "time",
            "os",
            "uuid",
            "random",
            "secrets",
            "subprocess",
            "socket",
            "select",
            "selectors",
            "ssl",
        ),
        *(
            "pathlib",
            "shutil",
            "tempfile",
            "glob",
            "threading",
            "multiprocessing",
            "concurrent",
            "sqlite3",
            "fcntl",
        ),
        *("resource", "pwd", "sys", "io", "aiohttp", "urllib", "http", "click"),
    }
)
"""Top-level modules that a sans-IO layer does without: bytes, time, names and chance come in as arguments."""
WITHOUT_HTTP = frozenset({"responses", "runs", "workers", "store", "process", "files"})
"""Layers that do IO, but have no aiohttp."""
IO_CALLS = frozenset({"open", "input", "print", "breakpoint"})
CLOCKS = frozenset({"now", "utcnow", "today"})

READS_THE_WORLD = frozenset(
    {
        *("codex_proxy.cli", "fake_proto.__main__"),
        *("codex_proxy.parts.clients.commands", "codex_proxy.parts.service.commands"),
        *("codex_proxy.app.application", "codex_proxy.app.server", "codex_proxy.app.start_checks"),
        *("codex_proxy.settings.fields", "codex_proxy.settings.load", "codex_proxy.settings.sources"),
        "codex_proxy.parts.acp.forwarder",  # a program of its own, which is given a secret so
    }
)
PROGRAMS = frozenset(
    {"codex_proxy.process.warden", "codex_proxy.process.landlock", "codex_proxy.parts.acp.forwarder"}
)
"""Started by their path, as programs of their own: they may read their arguments, and nothing else."""

IMPORT_LATE = frozenset(
    {
        "agents.codex.program",  # a package that is found to be installed by importing it
        "http.metrics",  # what the server's metrics have imported
        "http.server_info",  # the schemas of GET /openapi.json
        "parts.mcp.servers",  # the MCP package, with 290 modules
        "tools.schemas",  # the engine of JSON schemas, one library with 3 MB
        "process.warden",  # a program of its own, which starts for every child
        "workers.pdf_worker",  # a process of its own
    }
)
"""Modules of the layers whose functions import. All others import when the server starts, because a package may be
upgraded while it runs.
"""

REMEMBER = {
    **dict.fromkeys(
        (
            "core.step_memory",
            "runs.idle_sessions",
            "runs.observers",
            "store.usage",
        ),
        "each entry has its owner",
    ),
    **dict.fromkeys(("parts.traces.watcher", "workers.pdf_reader"), "the owner is a part of the key"),
    "parts.snapshots.keeper": "turns and folders have the owner in their key, or are one owner's",
    **dict.fromkeys(
        ("agents.shared.tool_schemas", "tools.schemas", "tools.strict_schemas", "workers.schema_checks"),
        "a value follows from the schema, which is the key",
    ),
    **dict.fromkeys(
        (
            "parts",
            "http.page",
            "http.server_info",
            "process.spawner",
            "store.queries",
            "store.records",
            "surfaces.chat.forward",
        ),
        "nothing of a client",
    ),
    "agents.shared.json_lines": "fields of this program's types",
    "surfaces.requests.fields": "nothing of a client",
    "parts.cassettes.folder_files": "what is in a folder, which no answer contains",
    "surfaces.answers.renderer": "a renderer's own, for one answer",
    "http.middleware.rate_limit": "digests of keys, which no answer contains",
}
"""Modules with a cache, and why no client gets from it what another one has sent."""
CACHES = frozenset({"cache", "lru_cache", "LruCache", "OwnedEntries"})

NAMES_AGENTS = "codex_proxy.agents."
"""The list of names and the modules of agents."""
DECLARES_PARTS = r"codex_proxy\.parts"
"""They name the agents of parts, also of absent ones."""
NAMES_CLIENTS = "codex_proxy.parts.clients."
"""What configures clients, of which some are also agents."""

MAX_MODULE, MAX_FUNCTION = 600, 60
CIRCLES_OF_ANNOTATIONS = {"codex_proxy": 2, "fake_proto": 6}
"""How many groups of modules import each other only to name types: a lower number is to be written here, a higher one
needs a Protocol, or a type in a module of its own.
"""


class Module:
    """One module's source, with its dotted name."""

    def __init__(self, name: str, source: str, *, package: bool = False) -> None:
        self.name = name
        self.source = source
        self.tree = parse(source)
        self.package = package

    @property
    def layer(self) -> str:
        """The package of the project that it is in; empty for the modules beside the layers."""
        parts = place_of(self.name).split(".")
        inside = (len(parts) > 2 or (self.package and len(parts) == 2)) and not is_wiring(self.name)
        return parts[1] if inside and parts[0] == "codex_proxy" and parts[1] not in WIRING else ""

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def _import_statements(self) -> list[ast.Import | ast.ImportFrom]:
        return [node for node in self.nodes if isinstance(node, ast.Import | ast.ImportFrom)]

    def imports(self, *, for_types: bool = True) -> Iterator[str]:
        """Every module that it imports, dotted and absolute; `from a import b` may mean `a.b`. `for_types`: also those
        that only type checkers import."""
        unwanted = set() if for_types else set(self._type_checking())
        for node in self._import_statements:
            if node in unwanted:
                continue
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            else:
                base = self._base(node)
                yield from (f"{base}.{alias.name}" for alias in node.names)

    def _type_checking(self) -> Iterator[ast.AST]:
        for node in self.nodes:
            if (
                isinstance(node, ast.If)
                and isinstance(node.test, ast.Name)
                and node.test.id == "TYPE_CHECKING"
            ):
                for each in node.body:
                    yield from ast.walk(each)

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        kept = parts[: len(parts) - node.level + self.package]
        return ".".join([*kept, *([node.module] if node.module else [])])


def place_of(name: str) -> str:
    """Returns the name that a module of a part would have in the part's layer; any other name as it is."""
    found = re.match(r"codex_proxy\.parts\.(\w+)", name)
    layer = PART_LAYERS.get(found[1]) if found else None
    beside = any(re.match(rf"{pattern}(\.|$)", name) for pattern in PART_WIRING)
    return name.replace("parts", layer, 1) if layer and not beside else name


def is_wiring(name: str) -> bool:
    """Whether it is a module of an agent that belongs to the wiring, or something in one."""
    return any(re.match(rf"{pattern}(\.|$)", place_of(name)) for pattern in AGENT_WIRING)


def may_import(layer: str, target: str) -> bool:
    """Whether the table lets a layer import a module of the project."""
    allowed = {layer, "__version__", *MAY_IMPORT.get(layer, ())}
    name = place_of(target).removeprefix("codex_proxy.")
    return not is_wiring(target) and any(name == each or name.startswith(f"{each}.") for each in allowed)


def is_list_of_parts(target: list[str]) -> bool:
    """Whether it is the list of parts, which all may ask, and no part."""
    return target[1:2] == ["parts"] and not KNOWN.keys() & set(target[2:3])


# --- the rules: each gives what is wrong with a module --------------------------------------------


def layering(module: Module) -> list[str]:
    """Imports go down only, and only as the table says."""
    wrong = []
    for target in module.imports():
        parts = target.split(".")
        if parts[0] == "fake_proto" and module.layer:
            wrong.append(f"{module.layer} imports {target}")
        if parts[0] != "codex_proxy" or not module.layer or is_list_of_parts(parts):
            continue
        if not may_import(module.layer, target):
            wrong.append(f"{module.layer} imports {target}")
    return wrong


def upwards(module: Module) -> list[str]:
    """The wiring of agents knows the settings, but nothing that is made of agents; only `cli` and parts
    know the commands."""
    package, *own = module.name.split(".")
    wrong = []
    for target in module.imports():
        parts = place_of(target).split(".")
        if package != "codex_proxy" or parts[0] != "codex_proxy" or len(parts) < 2 or not own:
            continue
        beside = parts[1] not in {*MAY_IMPORT, "__version__"}
        above_agents = is_wiring(module.name) and beside and parts[1] not in AGENT_WIRING_MAY_IMPORT
        above_agents = above_agents and not is_list_of_parts(parts)
        if above_agents or (parts[1] == "commands" and own[0] not in IMPORT_COMMANDS):
            wrong.append(f"{'.'.join(own)} imports {target}")
    return wrong


def without_parts(module: Module) -> list[str]:
    """The core imports no part; a part imports another only if it is declared."""
    if not module.name.startswith("codex_proxy"):
        return []
    own = module.name.split(".")[2] if re.match(r"codex_proxy\.parts\.\w", module.name) else ""
    found = {match[1] for each in module.imports() if (match := re.match(r"codex_proxy\.parts\.(\w+)", each))}
    others = found & KNOWN.keys() - {own, *PARTS_MAY_IMPORT.get(own, ())}
    return [f"imports the part {other}" for other in sorted(others)]


def standing_alone(module: Module) -> list[str]:
    """Agents do not import each other, nor do surfaces."""
    own = place_of(module.name).split(".")[1:3]
    if module.layer not in STAND_ALONE or not is_package(module.layer, own[-1]):
        return []
    wrong = []
    for target in module.imports():
        parts = place_of(target).split(".")
        if parts[:2] == ["codex_proxy", module.layer] and len(parts) > 2:
            other = parts[2]
            shared = f"{module.layer}.{other}" in SHARED_PACKAGES
            if other != own[-1] and is_package(module.layer, other) and not shared:
                wrong.append(f"{module.layer}.{own[-1]} imports {target}")
    return wrong


def is_package(layer: str, name: str) -> bool:
    return (ROOT / "codex_proxy" / layer / name).is_dir() or PART_LAYERS.get(name) == layer


def sans_io(module: Module) -> list[str]:
    """Core, dialects, surfaces and tools touch neither the operating system nor the clock."""
    if module.layer not in SANS_IO or module.name.removeprefix("codex_proxy.") in DRIVES_CHILDREN:
        return []
    wrong = [f"imports {name}" for name in module.imports() if name.split(".")[0] in DOES_IO]
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in IO_CALLS:
            wrong.append(f"calls {node.func.id}")
        elif isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS and not node.args:
            wrong.append(f"calls {node.func.attr}")
    return wrong


def without_http(module: Module) -> list[str]:
    """Below `http` nothing knows how a request came in."""
    if module.layer not in WITHOUT_HTTP:
        return []
    return [f"imports {name}" for name in module.imports() if name.split(".")[0] == "aiohttp"]


def world(module: Module) -> list[str]:
    """The environment and the arguments are read in one place. Scripts are programs of their own."""
    if module.name in READS_THE_WORLD or module.name.startswith("scripts."):
        return []
    read = [name for name in module.imports() if name in ("os.environ", "os.getenv", "sys.argv")]
    read += [
        f"{node.value.id}.{node.attr}"
        for node in module.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if (node.value.id, node.attr) in (("os", "environ"), ("os", "getenv"), ("sys", "argv"))
    ]
    return [f"reads {name}" for name in read if not (module.name in PROGRAMS and name == "sys.argv")]


def imports_at_start(module: Module) -> list[str]:
    """What serves turns imports nothing later: by then another version may be installed."""
    if not module.layer or module.name.removeprefix("codex_proxy.") in IMPORT_LATE:
        return []
    return [
        f"{function.name} imports"
        for function in module.nodes
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(function))
    ]


def remembering(module: Module) -> list[str]:
    """Only certain modules have caches, because a client must not see what another one has sent."""
    if not module.name.startswith("codex_proxy.") or module.name.removeprefix("codex_proxy.") in REMEMBER:
        return []
    return [f"imports {name}" for name in module.imports() if name.rpartition(".")[2] in CACHES]


def alone(module: Module) -> list[str]:
    """The fake agent is a program of its own: it imports nothing of the proxy."""
    if not module.name.startswith("fake_proto"):
        return []
    return [f"imports {name}" for name in module.imports() if name.split(".")[0] == "codex_proxy"]


def budgets(module: Module) -> list[str]:
    wrong = []
    lines = module.source.count("\n")
    if lines > MAX_MODULE:
        wrong.append(f"{lines} lines")
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                wrong.append(f"{node.name} has {length} lines")
    return wrong


def agent_names(module: Module) -> list[str]:
    """Only the list of names and an agent's own modules name an agent; others ask its spec or the agent itself."""
    own = (NAMES_AGENTS, NAMES_CLIENTS)
    declares = re.fullmatch(rf"{DECLARES_PARTS}(\.\w+)?", module.name)
    if place_of(module.name).startswith(own) or declares:
        return []
    if not module.name.startswith("codex_proxy"):
        return []
    documented = {node.value for node in module.nodes if isinstance(node, ast.Expr)}
    wrong = []
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documented:
            # As a word of its own: the name of a header may hold one.
            said = re.findall(r"[\w-]+", node.value)
            wrong += [f"names {name}" for name in BUILT_IN if "-" in name and name in said]
        elif (
            isinstance(node, ast.Compare)
            and isinstance(node.left, ast.Attribute)
            and node.left.attr == "agent"
        ):
            wrong += [
                f"compares with {each.value!r}"
                for each in node.comparators
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
    return wrong


def words(module: Module) -> list[str]:
    wrong = [f"a {word}" for word in re.findall(r"\b(TODO|FIXME|XXX)\b", module.source)]
    documented = ast.get_docstring(module.tree) or not module.tree.body  # an empty file decides nothing
    return wrong if documented else [*wrong, "no docstring"]


RULES: tuple[Callable[[Module], list[str]], ...] = (
    *(layering, upwards, without_parts, standing_alone, sans_io, without_http, world, imports_at_start),
    *(alone, agent_names, remembering, budgets, words),
)


# --- the project ----------------------------------------------------------------------------------


def python_files() -> list[Path]:
    files = [path for tree in ("codex_proxy", "fake_proto") for path in (ROOT / tree).rglob("*.py")]
    scripts = [path for path in (ROOT / "scripts").rglob("*") if path.is_file()]
    files += [
        path
        for path in scripts
        if path.suffix == ".py" or b"python" in path.read_bytes()[:40].split(b"\n")[0]
    ]
    return sorted(path for path in files if "__pycache__" not in path.parts)


@cache
def modules_of_the_project() -> list[Module]:
    return [module_at(path) for path in python_files()]


def module_at(path: Path) -> Module:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    package = parts[-1] == "__init__"
    return Module(".".join(parts[:-1] if package else parts), path.read_text(), package=package)


def test_every_module_keeps_to_the_shape_of_the_project() -> None:
    found = [
        f"{module.name} {said}"
        for module in modules_of_the_project()
        for rule in RULES
        for said in rule(module)
    ]
    assert not found, "\n".join(found)


def test_no_module_imports_itself_through_others() -> None:
    """Not even later, inside of a function. Imports for annotations alone are no imports of a running server."""
    assert circles(for_types=False) == []


def test_circles_of_imports_for_annotations_become_no_more() -> None:
    found = [circle[0].partition(".")[0] for circle in circles(for_types=True)]
    assert {name: found.count(name) for name in set(found)} == CIRCLES_OF_ANNOTATIONS


def circles(*, for_types: bool) -> list[list[str]]:
    """Returns groups of modules that all import each other, if only through others."""
    modules = {module.name: module for module in modules_of_the_project()}
    imported = {
        name: {
            target if target in modules else target.rpartition(".")[0]
            for target in module.imports(for_types=for_types)
        }
        & (modules.keys() - {name})
        for name, module in modules.items()
    }
    reached = {name: reachable(name, imported) for name in modules}
    groups = {
        name: sorted(other for other in reached[name] if name in reached[other])
        for name in modules
        if name in reached[name]
    }
    return sorted(group for name, group in groups.items() if group[0] == name)


def reachable(start: str, imported: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    to_see = list(imported[start])
    while to_see:
        name = to_see.pop()
        if name not in found:
            found.add(name)
            to_see += imported[name]
    return found


def test_every_package_of_the_project_has_a_place_in_the_table() -> None:
    packages = {path.parent.name for path in (ROOT / "codex_proxy").glob("*/__init__.py")}
    assert packages | set(PART_LAYERS.values()) <= set(MAY_IMPORT) | WIRING


def test_the_page_has_the_same_table() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \| [^|]+ \|$", page.partition("## Layers")[2], re.MULTILINE)
    found = {
        name: set(re.findall(r"`([\w.]+)`", below))
        for names, below in table
        for name in re.findall(r"`(\w+)`", names)
    }
    beside = {path.stem for path in (ROOT / "codex_proxy").glob("*.py")} - {"__init__", "__main__"}
    allowed = {name: set(below) for name, below in MAY_IMPORT.items()}
    assert found == allowed | {name: set[str]() for name in WIRING | beside}


def test_the_table_has_no_circles() -> None:
    for layer, below in MAY_IMPORT.items():
        for other in below:
            assert layer not in MAY_IMPORT[other.partition(".")[0]]


BAD: list[tuple[Callable[[Module], list[str]], str, str]] = [
    (layering, "core.repair", "import codex_proxy.agents.dialect"),
    (layering, "surfaces.chat.render", "from ...runs import run"),
    (layering, "http.sse", "from codex_proxy.agents import dialect"),
    (layering, "agents.codex_proto.proto_dialect", "from codex_proxy.agents.codex.codex_specs import x"),
    (layering, "runs.run", "import fake_proto.loop"),
    (layering, "parts.mcp.servers", "from codex_proxy.runs import run"),
    (layering, "parts.mcp.servers", "from codex_proxy.parts.mcp.tool_source import log"),
    (layering, "parts.claude_code.claude_dialect", "from codex_proxy.runs import run"),
    (sans_io, "parts.claude_code.claude_dialect", "import time"),
    (
        standing_alone,
        "parts.claude_code.claude_dialect",
        "from codex_proxy.agents.codex_proto import dialect",
    ),
    (without_parts, "app.server", "def f():\n    from codex_proxy.parts.traces import watcher"),
    (
        standing_alone,
        "agents.codex_proto.proto_dialect",
        "from codex_proxy.agents.codex_app_server import wire",
    ),
    (sans_io, "tools.policy", "def f():\n    import time"),
    (sans_io, "surfaces.models", "x = datetime.datetime.now()"),
    (without_http, "responses.prepare", "from aiohttp import web"),
    (world, "runs.scheduler", "import os\nx = os.environ['HOME']"),
    (remembering, "admission.images", "from functools import lru_cache"),
    (imports_at_start, "tools.policy", "def f():\n    from codex_proxy.tools.schemas import is_quick"),
    (agent_names, "admission.admit", "x = 'Try --agent codex-proto.'"),
    (budgets, "core.repair", "x = 1\n" * (MAX_MODULE + 1)),
    (words, "core.repair", "x = 1"),
]


@pytest.mark.parametrize(("rule", "name", "source"), BAD)
def test_a_rule_finds_what_it_forbids(rule: Callable[[Module], list[str]], name: str, source: str) -> None:
    assert len(rule(Module(f"codex_proxy.{name}", source))) == 1
