"""What is published: metadata that agree with each other, and archives with everything in them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import everfed

ROOT = Path(__file__).parents[1]
PACKAGE = Path(everfed.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
METADATA = PROJECT["project"]
# Of the repository, and of no use without it.
LEFT_OUT = (".ci/", ".gitignore")


def test_the_version_has_one_place_that_is_read_without_importing():
    assert METADATA["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "everfed.__version__"
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    literals = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__version__"]
    ]
    assert literals == [everfed.__version__]


def test_the_citation_is_of_this_version():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    cited = {key: value.strip(' "') for key, _, value in (line.partition(":") for line in lines) if value}
    assert cited["version"] == everfed.__version__
    assert cited["license"] == METADATA["license"]
    assert cited["repository-code"] == METADATA["urls"]["Source"]


def test_urls_and_classifiers_are_complete():
    assert METADATA["urls"].keys() >= {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    source = METADATA["urls"]["Source"]
    assert METADATA["urls"]["Documentation"] == "https://everfed.github.io/everfed/"  # where site.yml publishes it
    assert all(url.startswith(source) for name, url in METADATA["urls"].items() if name != "Documentation")
    tested = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    versions = re.findall(r":: (3\.\d+)'", str(METADATA["classifiers"]))
    assert f">={versions[0]}" == METADATA["requires-python"]
    assert all(f'"{version}"' in tested for version in versions)
    assert {"Typing :: Typed", "Operating System :: OS Independent"} <= set(METADATA["classifiers"])


def test_whatever_is_imported_is_a_dependency_or_of_an_extra():
    rows = [*METADATA["dependencies"], *(row for rows in METADATA["optional-dependencies"].values() for row in rows)]
    declared = {_normal(re.split(r"[^\w.-]", row)[0]) for row in rows}
    owners = packages_distributions()
    # Flower, typer and a notebook's kernel bring these along, and nothing here asks for them without those.
    declared |= {"cryptography", "httpx", "protobuf", "click", "ipython", "everfed"}
    for path in PACKAGE.rglob("*.py"):
        for name in _imported(path):
            distributions = {_normal(owner) for owner in owners.get(name, [name])}
            assert distributions & declared, f"{path.relative_to(PACKAGE)} imports {name}, which nothing declares"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names


def test_every_data_file_of_the_package_is_in_the_wheel():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["everfed"]
    packed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    found = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert found == packed
    assert {"py.typed", "__init__.pyi", "digits.toml", "page.html", "page.css", "page.js"} <= {p.name for p in packed}


def test_the_source_archive_holds_every_file_of_the_repository():
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: there is no list of files to compare with")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    rules = [line.split() for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()]
    whole = tuple(f"{folder}/" for words in rules if words[0] == "graft" for folder in words[1:])
    single = {name for words in rules if words[0] == "include" for name in words[1:]}
    # Which setuptools adds by itself:
    single |= {"pyproject.toml", "MANIFEST.in", METADATA["readme"], *METADATA["license-files"]}
    missing = [
        name
        for name in done.stdout.split("\0")
        if name and not name.startswith((*whole, "src/", *LEFT_OUT)) and name not in single
    ]
    assert missing == []
    assert all((ROOT / name).exists() for name in single | set(whole))


def test_workflows_are_valid_and_name_files_that_exist():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    for path in (ROOT / ".github" / "workflows").iterdir():
        text = path.read_text(encoding="utf-8")
        jobs = yaml.safe_load(text)["jobs"]
        assert all(step.keys() & {"run", "uses"} for job in jobs.values() for step in job["steps"])
        assert all((ROOT / name).exists() for name in re.findall(r"tests/\w+\.py", text))
        assert "secrets." not in text
