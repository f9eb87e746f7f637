"""Which code computes: everfed's own files and the packages that its numbers depend on."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
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
    total = hashlib.sha256()
    for path in sorted(here.rglob("*.py"), key=lambda path: path.relative_to(here).as_posix()):
        place = path.relative_to(here)
        if place.parts[0] not in _ASIDE:
            content = path.read_bytes().replace(b"\r\n", b"\n")
            total.update(f"{place.as_posix()}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


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
