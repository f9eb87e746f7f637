"""Bytes of the model on its way to the clients, for each way of sending it, and the accuracy that comes of it.

    python benchmarks/downlink.py                          # the preset digits, four seeds; a minute
    python benchmarks/downlink.py --preset digits --seeds 10

The runs are simulated, and what a server would send to each participant is packed as it would be.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace

import numpy as np
from flwr.app import RecordDict

import everfed as ef
from everfed import presets
from everfed.errors import EverfedWarning
from everfed.flower import wire
from everfed.flower.downlink import ABOUT, Downlink
from everfed.learning.downlink import DOWNLINKS, as_sent
from everfed.run import config
from everfed.run.experiment import Experiment


def sent(experiment: Experiment, differences: bool) -> tuple[float, float]:
    """(bytes per model sent, accuracy at the end)."""
    run = ef.start(experiment)
    down, held = Downlink(experiment.downlink, differences), np.full(len(run.setup.fleet), "", dtype=object)
    shapes, total, models = run.setup.layout.shapes_by_name(), 0, 0
    model = as_sent(run.server.params, experiment.downlink).numpy()
    for record in run:
        for client in record.participants.tolist():
            records = down.records(model, shapes, held[client])
            total, models = total + wire.size(RecordDict(records)), models + 1
            if differences:
                held[client] = records[ABOUT]["keep"]
        model = as_sent(run.server.params, experiment.downlink).numpy()
    assert record.metrics
    assert record.metrics.accuracy
    return total / models, record.metrics.accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="digits")
    parser.add_argument("--method", default="algorithm1")
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    warnings.simplefilter("ignore", EverfedWarning)
    base = config.from_dict(presets.content(given.preset)).with_method(given.method)
    print(f"{'downlink':10} {'differences':12} {'bytes per model':>16} {'accuracy, mean over seeds':>28}")
    for downlink in DOWNLINKS:
        for differences in (False, True):
            found = [sent(replace(base, downlink=downlink, seed=s), differences) for s in range(given.seeds)]
            size, accuracy = np.mean(found, axis=0)
            print(f"{downlink:10} {differences!s:12} {size:16,.0f} {accuracy:28.4f}", flush=True)


if __name__ == "__main__":
    main()
