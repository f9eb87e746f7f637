"""Which code computes: everfed's own files and the packages that its numbers depend on."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# Numbers depend on these; on how files are written and shown they do not.
_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn")
# Rooms that only show results, or speak to devices. A change there cannot change a simulation.
_ASIDE = ("cli", "flower", "report", "presets")


@functools.cache
def code_digest() -> str:
    """A digest of the source files that compute, the same for the same files wherever they are installed."""
    here = Path(__file__).parent
    return _digest(here, (path for path in here.rglob("*.py") if path.relative_to(here).parts[0] not in _ASIDE))


def _digest(folder: Path, files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for place, path in sorted((path.relative_to(folder).as_posix(), path) for path in files):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        total.update(f"{place}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def plugin_digests(names: Iterable[str]) -> dict[str, str]:
    """Digests of loaded plugins: of the whole package that a module belongs to, or of its one file.

    A script's or notebook's own kinds travel with the experiment, so `__main__` is left out.
    """
    found = {}
    for top in sorted({name.partition(".")[0] for name in names} - {"__main__"}):
        module = sys.modules[top]
        folders = [Path(place) for place in getattr(module, "__path__", ())]
        parts = [_digest(folder, folder.rglob("*.py")) for folder in folders]
        if not folders and (file := getattr(module, "__file__", None)):
            parts = [_digest(Path(file).parent, [Path(file)])]
        found[f"plugin {top}"] = " ".join(part[:16] for part in parts)
    return found


@functools.cache  # every checkpoint asks, and metadata are read from files
def package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, Any]:
    """What two processes must share to compute the same numbers."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "everfed code": code_digest()[:16],
        **{name: package_version(name) for name in _PACKAGES},
    }


def other_versions(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Differences of two `versions`, in words; what one of them lacks (older folders) is not compared."""
    return [f"{name} {then[name]}, now {now[name]}" for name in now if name in then and then[name] != now[name]]
