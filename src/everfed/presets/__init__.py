"""Built-in experiments, one TOML file each in this folder; the first line says what it is for."""

from __future__ import annotations

from importlib import resources
from typing import Any

from everfed.registry import lookup
from everfed.run import config


def texts() -> dict[str, str]:
    """The TOML text of every preset, by name."""
    files = sorted(resources.files(__name__).iterdir(), key=lambda f: f.name)
    return {f.name.removesuffix(".toml"): f.read_text(encoding="utf-8") for f in files if f.name.endswith(".toml")}


def about(text: str) -> str:
    """The comment in a preset's first line."""
    return text.splitlines()[0].lstrip("# ")


def content(name: str) -> dict[str, Any]:
    """The raw content of a preset, to be changed or turned into an Experiment."""
    return config.parse(lookup(texts(), name, "preset"), name)
