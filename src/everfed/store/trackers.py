"""Trackers: TensorBoard event files and MLflow.

A tracker consumes round records; none is active by default. Each writes into the run's folder by default, and continues
at the right round when a run is resumed.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from everfed.errors import InputError, extra, first_line
from everfed.registry import lookup
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.history import RoundRecord


class Tracker(AbstractContextManager["Tracker"]):
    """Base of all trackers, created from the experiment and the run's folder; `TRACKERS` lists them."""

    @abstractmethod
    def __init__(self, experiment: Experiment, folder: Path) -> None: ...

    @abstractmethod
    def record(self, record: RoundRecord) -> None: ...


def scalars(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round, by the names that both trackers show."""
    values: dict[str, float] = {
        "round/participants": len(record.participants),
        "round/weight": record.round_weight,
        "round/update_norm": record.update_norm,
        "energy/harvested": record.energy.harvested,
        "energy/spent": record.energy.spent,
        "energy/wasted": record.energy.wasted,
    }
    if record.arrived:
        values["round/version"] = record.arrived.version
        if len(record.arrived.staleness):
            values["round/staleness"] = float(record.arrived.staleness.mean())
    if record.train_loss is not None:
        values["train/loss"] = record.train_loss
    for where, metrics in (("test", record.metrics), ("validation", record.validation)):
        if metrics:
            values[f"{where}/loss"] = metrics.loss
            if metrics.accuracy is not None:
                values[f"{where}/accuracy"] = metrics.accuracy
            for label, value in (metrics.group_accuracy or {}).items():
                values[f"{where}/accuracy_{label.replace('=', '_')}"] = value
            values |= {f"{where}/{name}": value for name, value in metrics.own.items()}
    return values


class TensorBoard(Tracker):
    """Event files in <run>/tensorboard: tensorboard --logdir everfed-out."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        module = extra("torch.utils.tensorboard", "tracking with TensorBoard needs", "tensorboard")
        self.make: Any = module.SummaryWriter
        self.folder, self.text = folder / "tensorboard", config.to_toml(experiment)
        self.writer: Any = None

    def record(self, record: RoundRecord) -> None:
        if self.writer is None:
            # Rounds that were logged after the last checkpoint come again: the purge hides the first copy.
            self.writer = self.make(str(self.folder), purge_step=record.round)
            self.writer.add_text("experiment", f"```toml\n{self.text}```", record.round)
        for name, value in scalars(record).items():
            self.writer.add_scalar(name, value, record.round)

    def __exit__(self, *ended: object) -> None:
        if self.writer:
            self.writer.close()


class MLflow(Tracker):
    """An MLflow run in <run>/mlflow.db, or wherever MLFLOW_TRACKING_URI points."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        # Unless the environment says otherwise, an address without a server is an error in seconds, not in minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "4")
        mlflow = extra("mlflow", "tracking with MLflow needs", "mlflow")
        folder.mkdir(parents=True, exist_ok=True)
        address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').resolve().as_posix()}"
        self.address, self.metric = address, mlflow.entities.Metric
        with self._asking():
            self.client: Any = mlflow.MlflowClient(tracking_uri=address)
            self.run_id = self._run(experiment, folder / "mlflow-run")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Whatever fails in MLflow is said in one sentence."""
        try:
            yield
        except Exception as error:
            raise InputError(
                f"MLflow at {self.address} failed: {first_line(error)}; start it or correct MLFLOW_TRACKING_URI, or go "
                "on without --track mlflow: the run itself is in its folder."
            ) from error

    def _run(self, experiment: Experiment, remembered: Path) -> str:
        """The run of this folder: the one from before, or a new one with the settings as its parameters."""
        known = remembered.read_text(encoding="utf-8").strip() if remembered.exists() else ""
        if known:
            return known
        found = self.client.get_experiment_by_name("everfed")
        group = found.experiment_id if found else self.client.create_experiment("everfed")
        run_id: str = self.client.create_run(group, run_name=remembered.parent.name).info.run_id
        for key, value in config.flat(config.to_dict(experiment)).items():
            self.client.log_param(run_id, key, value)
        remembered.write_text(run_id, encoding="utf-8")
        return run_id

    def record(self, record: RoundRecord) -> None:
        now = int(1000 * time.time())
        metrics = [self.metric(name, float(v), now, record.round) for name, v in scalars(record).items()]
        with self._asking():
            self.client.log_batch(self.run_id, metrics=metrics)

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        # What ended the run is what is worth saying, if MLflow fails as well.
        with self._asking() if kind is None else suppress(Exception):
            self.client.set_terminated(self.run_id, "FINISHED" if kind is None else "FAILED")


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def tracked(
    records: Iterator[RoundRecord], names: Sequence[str], experiment: Experiment, folder: Path
) -> Iterator[RoundRecord]:
    """Yield the same records, writing each to these trackers."""
    kinds = [lookup(TRACKERS, name, "tracker") for name in names]
    with ExitStack() as stack:
        trackers = [stack.enter_context(kind(experiment, folder)) for kind in kinds]
        for record in records:
            for tracker in trackers:
                tracker.record(record)
            yield record
