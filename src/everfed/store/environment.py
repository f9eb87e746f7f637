"""Versions, hardware and trainer of a run, for reproducibility."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from everfed.energy.physical import DeviceFleet
from everfed.run.experiment import Experiment
from everfed.run.loop import Run
from everfed.store.rebuild import anatomy
from everfed.versions import package_version, versions

_PACKAGES = ("everfed", "torch", "numpy", "pyarrow", "safetensors", "scikit-learn")


def environment(run: Run) -> dict[str, Any]:
    """Versions, commit and hardware of this process, and how it trains."""
    device = run.setup.device
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in _PACKAGES},
        "versions": versions(),
        "commit": _commit(),
        "system": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": device.type,
        "precision": run.experiment.precision,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "training": run.source.training().to_dict(),
        "model": anatomy(run.setup),
    }


def fleet_assumptions(experiment: Experiment) -> dict[str, Any]:
    """What the cycles of a fleet of devices followed from, and the SHA-256 of its traces and weather files."""
    fleet = experiment.fleet
    if not isinstance(fleet, DeviceFleet):
        return {}
    rows = [row.to_dict() for row in fleet.assumptions(experiment.local_steps, experiment.encoding)]
    traces = {Path(g.trace).name: g.trace_sha256 for g in fleet.groups if g.trace}
    traces |= {Path(path).name: sha256 for site in fleet.sites.values() for path, sha256 in site.files}
    return {"fleet": rows, "traces": traces}


def _commit() -> str | None:
    """The source's git commit, with a mark if it was changed; None for an installed package."""
    try:
        return _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=10).stdout.strip()


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
