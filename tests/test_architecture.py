"""The shape of the source: imports go one way, and files stay short enough to read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import everfed

ROOT = Path(everfed.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = [path for path in FILES if path != ROOT / "__init__.py"]
MOST_LINES = 400

# Lowest first; a module may import from its own row and from the rows above it.
LAYERS = [
    {"errors", "arrays", "checks", "files", "machine", "versions", "random", "stats", "registry", "plugins", "units"}
    | {"showing"},
    {"energy"},
    {"data"},
    {"scheduling"},
    {"learning"},
    {"engine"},
    {"trainers"},
    {"server"},
    {"methods"},
    {"auditing"},
    {"theory"},
    {"run"},
    {"advising"},
    {"testbed"},
    {"presets", "store"},
    {"studies"},
    {"report"},
    {"api", "ray"},
    {"cli", "__main__", "flower", "device"},
]
HEIGHT = {name: height for height, row in enumerate(LAYERS) for name in row}
# The package's own namespace holds names of nearly every layer: only the top may import from it.
HEIGHT["everfed"] = len(LAYERS) - 1


def relative(path):
    return path.relative_to(ROOT).as_posix()


def room(path):
    """The layer a file belongs to: its folder, or its own name."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(tree, package):
    """What a file takes from everfed, anywhere in it; package: the dotted package it lies in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{source}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "everfed":
                first = rest.split(".")[0]
                yield first if first in HEIGHT else "everfed"


def test_the_source_is_found():
    assert len(MODULES) > 20


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_every_module_has_a_layer(path):
    assert room(path) in HEIGHT


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_go_one_way(path):
    package = ".".join(["everfed", *path.relative_to(ROOT).parts[:-1]])
    taken = set(imported_rooms(ast.parse(path.read_text(encoding="utf-8")), package))
    upward = {name for name in taken if HEIGHT[name] > HEIGHT[room(path)]}
    assert not upward, f"{relative(path)} imports from later layers: {', '.join(sorted(upward))}"


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["everfed", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def imports_of(path, modules):
    """The modules of everfed that a file imports anywhere in it: at the top, in functions, for type checkers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from (name for name in [inner if inner in modules else node.module] if name in modules)


def test_no_module_imports_itself_by_a_detour():
    modules = {module_name(path): path for path in FILES}
    graph = {name: set(imports_of(path, modules)) - {name} for name, path in modules.items()}
    assert sum(map(len, graph.values())) > 300  # the imports are found
    while leaves := [name for name, inner in graph.items() if not inner]:
        for leaf in leaves:
            del graph[leaf]
        graph = {name: inner - set(leaves) for name, inner in graph.items()}
    assert not graph, f"these modules import each other in a circle: {', '.join(sorted(graph))}"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_files_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize(
    ("line", "rooms"),
    [
        ("import numpy", set()),
        ("import everfed", {"everfed"}),
        ("import everfed.cli.app", {"cli"}),
        ("from everfed import random, theory", {"random", "theory"}),
        ("from everfed import __version__", {"everfed"}),
        ("from everfed.energy.fleet import Fleet", {"energy"}),
        ("from everfed.scheduling import plan as p", {"scheduling"}),
        ("from . import battery", {"energy"}),
        ("from .battery import Books", {"energy"}),
        ("from .. import cli", {"cli"}),
        ("from ..cli.app import main", {"cli"}),
        ("def f():\n    from everfed.report import table", {"report"}),
        ("if TYPE_CHECKING:\n    from everfed.report import table", {"report"}),
    ],
)
def test_the_check_sees_every_way_to_import(line, rooms):
    assert set(imported_rooms(ast.parse(line), "everfed.energy")) == rooms
