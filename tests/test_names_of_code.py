"""No name that is read from a file, a client, an agent or an upstream is imported, made or called.

The test finds every place that imports a module, looks up an attribute or runs code by a name that is no constant in
the source. Each is listed with where its names come from.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from codex_proxy.parts import absent_parts
from tests.syntax import parse

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("codex_proxy", "fake_proto")

BY_NAME: Final[dict[str, int]] = {
    **dict.fromkeys(("eval", "exec", "compile", "__import__", "builtins.__import__"), 0),
    **dict.fromkeys(("builtins.eval", "builtins.exec", "builtins.compile"), 0),
    **dict.fromkeys(("importlib.import_module", "importlib.__import__", "importlib.util.find_spec"), 0),
    **dict.fromkeys(("pkgutil.resolve_name", "pkgutil.get_loader", "pkgutil.find_loader"), 0),
    **dict.fromkeys(("importlib.util.spec_from_file_location", "importlib.util.module_from_spec"), 0),
    **dict.fromkeys(("runpy.run_path", "runpy.run_module", "pydoc.locate"), 0),
    **dict.fromkeys(("operator.attrgetter", "operator.methodcaller", "types.FunctionType"), 0),
    **dict.fromkeys(("getattr", "setattr", "delattr", "object.__getattribute__"), 1),
    **dict.fromkeys(("builtins.getattr", "builtins.setattr"), 1),
    **dict.fromkeys(("inspect.getattr_static",), 1),
}
"""What takes a name, and which argument it is."""
BY_DATA: Final = frozenset(
    {
        *("globals", "locals", "vars", "sys.modules"),
        *(f"{module}.{name}" for module in ("pickle", "_pickle", "marshal") for name in ("load", "loads")),
        *("pickle.Unpickler", "_pickle.Unpickler", "shelve.open", "copyreg.constructor", "jsonpickle.decode"),
        *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.Loader", "yaml.UnsafeLoader"),
        *("pydantic.ImportString", "code.InteractiveInterpreter", "multiprocessing.connection.Client"),
        *("logging.config.dictConfig", "logging.config.fileConfig", "logging.config.listen"),
    }
)
"""What makes objects, modules or code of what it reads."""
ATTRIBUTES: Final = frozenset({"__dict__", "__subclasses__", "__globals__", "__builtins__", "__loader__"})

ALLOWED: Final[dict[str, str]] = {
    # Imports and calls:
    "codex_proxy.parts.__init__:_is_there": "the names in KNOWN",
    "codex_proxy.parts.__init__:_found": "the names in KNOWN",
    "codex_proxy.parts.__init__:absent_part": "the fields of `KnownPart`",
    "codex_proxy.parts.__init__:own_settings_of": "what parts declare",
    "codex_proxy.agents.fake.fake_spec:<module>": "what parts declare",
    "codex_proxy.parts.__init__:declared": "the fields of `Part`, and what parts declare",
    "codex_proxy.agents.registry:_load": "the values of BUILT_IN, and constants",
    "codex_proxy.agents.registry:call_plugin_part": "what a part declares whose agent the operator names",
    "codex_proxy.agents.configured.agents:_used_settings": "the names of settings in a spec",
    "codex_proxy.agents.registry:plugin_part": "the same",
    "codex_proxy.agents.registry:load_plugin": "what the operator gives as --agent-plugin, or an installed package",
    "codex_proxy.agents.names:code_of": "what the operator gives as --agent-plugin; it is not imported",
    "codex_proxy.agents.spec:possible_capabilities": "the names of settings in a spec",
    "codex_proxy.agents.spec:call": "the constants that specs pass to `later`",
    "codex_proxy.parts.upstream.server:__init__": "the constants `make_dialect` of the two APIs",
    "codex_proxy.parts.mcp.servers:_start": "a constant",
    "codex_proxy.parts.mcp.servers:_transports": "constants",
    "codex_proxy.app.store_lifecycle:_class_of": "what parts declare",
    "codex_proxy.settings.protected_paths:_files_of_parts": "what parts declare",
    "codex_proxy.settings.protected_paths:_code": "the packages of this project and its plugin; none is imported",
    "codex_proxy.commands.lean_imports:import_structlog": "constants; nothing is imported by them",
    "codex_proxy.commands.lean_imports:import_aiohttp": "a class of this module",
    "codex_proxy.core.json_values:_without_surrogates_in": "the names of a struct's fields",
    "codex_proxy.parts.claude_code.step_reader:_on_delta": "the values of DELTAS",
    # Formats other than JSON:
    "codex_proxy.process.warden:become_child": "the bytes of the server for its own child; marshal makes no objects",
    "codex_proxy.parts.clients.documents:_parse_yaml": "a round-trip loader, which makes no objects of its tags",
    # Attributes of a value, not of a module:
    "codex_proxy.parts.acp.reported_calls:merge": "the fields of a class",
    "codex_proxy.parts.upstream.failures:_failure_in": "constants",
    "codex_proxy.app.server_parts:seconds": "constants",
    "codex_proxy.parts.cassettes.format:lines_of": "the fields of a class",
    "codex_proxy.parts.cassettes.settings:settings_that_matter": "the constants RELEVANT_SETTINGS",
    "codex_proxy.parts.clients.connect:fill": "constants",
    "codex_proxy.commands.doctor:examine": "the fields of the settings",
    "codex_proxy.commands.doctor:report_value": "the fields of a class",
    "codex_proxy.surfaces.requests.options:options_as_given": "constants of the table of options",
    "codex_proxy.http.turns:<module>": "constants of the table of options",
    "codex_proxy.runs.idle_sessions:<module>": "constants of the table of options",
    "codex_proxy.parts.mcp.config:_replace_variables": "the fields of a class",
    "codex_proxy.parts.sessions.agents:_stored": "the fields of a class",
    "codex_proxy.parts.sessions.agents:ignored_in": "constants",
    "codex_proxy.process.warden:parse_limits": "the operator's limits, as names of RLIMIT_ constants",
    "codex_proxy.settings.fields:_agent_is_known": "the names of settings that parts declare",
    "codex_proxy.parts.upstream.upstream_specs:_choose_agent": "a constant",
    "codex_proxy.agents.configured.agents:_tables_of_parts": "what parts declare",
    "codex_proxy.parts.cassettes.serving:_secrets_in": "the fields of the settings",
    "codex_proxy.settings.load:unused_settings": "constants",
    "codex_proxy.settings.load:_is_set": "constants",
    "codex_proxy.parts.machines.postgresql.team:exchange": "the fields of a class",
    "codex_proxy.store.values:__add__": "the fields of a class",
    "codex_proxy.surfaces.answers.renderer:__init_subclass__": "the constants HANDLERS",
    "codex_proxy.surfaces.requests.fields:add_unknown_of": "the fields of a class",
    "codex_proxy.surfaces.responses.items:_plain_form": "constants",
    "codex_proxy.surfaces.requests.options:non_null_fields": "constants",
}
"""The places, by module and function, and where their names come from."""


def uses(source: str) -> Iterator[tuple[str, str]]:
    """Yields the function and the name of each use whose name is no constant."""
    tree = parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                aliases[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                aliases[each.asname or each.name] = f"{node.module}.{each.name}"
    yield from _uses_in(tree, "<module>", aliases)


def _uses_in(node: ast.AST, function: str, aliases: dict[str, str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node.name
    skipped: ast.AST | None = None
    if isinstance(node, ast.Call):
        at = BY_NAME.get(_dotted(node.func, aliases), -1)
        if 0 <= at < len(node.args) and _is_constant(node.args[at]):
            skipped = node.func
    elif isinstance(node, ast.Name | ast.Attribute):
        name = _dotted(node, aliases)
        if name in BY_NAME or name in BY_DATA:
            yield function, name
            return
        if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            yield function, node.attr
    for child in ast.iter_child_nodes(node):
        if child is not skipped:
            yield from _uses_in(child, function, aliases)


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value, aliases)):
        return f"{before}.{node.attr}"
    return ""


def found_in_packages() -> Counter[str]:
    found: Counter[str] = Counter()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found.update(f"{module}:{function}" for function, _ in uses(path.read_text("utf-8")))
    return found


def test_code_is_named_by_constants_and_by_the_operator_alone() -> None:
    found = found_in_packages()
    assert set(found) - set(ALLOWED) == set(), "names from where?"
    absent = tuple(f"codex_proxy.parts.{name}." for name in absent_parts())
    gone = {name for name in set(ALLOWED) - set(found) if not name.startswith(absent)}
    assert gone == set(), "no longer there"


@pytest.mark.parametrize(
    "planted",
    [
        "import pkgutil\ndef f(line): return pkgutil.resolve_name(line['session'])",
        "from pkgutil import resolve_name as find\ndef f(line): return map(find, line)",
        "import importlib\ndef f(line): return importlib.import_module(line['module'])",
        "def f(line): return __import__(line)",
        "from codex_proxy.agents import acp\ndef f(line): return getattr(acp, line['type'])",
        "from functools import partial\ndef f(line): return partial(getattr, line)",
        "import pickle as p\ndef f(row): return p.loads(row)",
        "from marshal import loads\ndef f(row): return loads(row)",
        "import sys\ndef f(line): return sys.modules[line['module']]",
        "import yaml\ndef f(text): return yaml.load(text, yaml.Loader)",
        "def f(line): return globals()[line]",
        "import codex_proxy\ndef f(line): return codex_proxy.__dict__[line]",
        "def f(line): return eval(f'{line}()')",
        "import operator\ndef f(line): return operator.methodcaller(line)",
        "from pydantic import BaseModel, ImportString\nclass A(BaseModel):\n    session: ImportString",
    ],
)
def test_a_planted_name_of_code_is_found(planted: str) -> None:
    assert list(uses(planted))


def test_constants_are_not_found() -> None:
    assert not list(
        uses("import re, importlib\nre.compile('a')\nimportlib.import_module('a')\ngetattr(1, 'a')")
    )
