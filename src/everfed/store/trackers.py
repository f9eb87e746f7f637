"""Trackers: TensorBoard event files, MLflow and Weights & Biases.

A tracker consumes round records; none is active by default. Each writes to disk by default, and continues at the right
round when a run is resumed.
"""

from __future__ import annotations

import os
import secrets
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from everfed.errors import InputError, extra, first_line
from everfed.registry import lookup
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.history import RoundRecord

_SEND_EVERY_S = 1.0  # to MLflow, whose store is locked for each sending
_MOST_AT_ONCE, _MOST_WAITING = 1000, 5000  # numbers; MLflow takes no more at once


class Tracker(AbstractContextManager["Tracker"]):
    """Base of all trackers, created from the experiment and the run's folder; `TRACKERS` lists them."""

    @abstractmethod
    def __init__(self, experiment: Experiment, folder: Path) -> None: ...

    @abstractmethod
    def record(self, record: RoundRecord) -> None: ...


def scalars(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round, by the names that all trackers show."""
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
    """An MLflow run in `mlflow.db`, or wherever MLFLOW_TRACKING_URI points.

    All runs of a sweep have one store, beside the folder of its runs: `mlflow ui --backend-store-uri
    sqlite:///everfed-out/sweep/mlflow.db`. A run in a folder of its own has its store in there.
    """

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        # Unless the environment says otherwise, an address without a server is an error in seconds, not in minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "4")
        mlflow = extra("mlflow", "tracking with MLflow needs", "mlflow")
        folder.mkdir(parents=True, exist_ok=True)
        store = store_of(folder, "mlflow.db").resolve()
        # Processes of a sweep write in turn: one waits for the others.
        self.address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{store.as_posix()}?timeout=60"
        self.metric, self.waiting, self.sent_at = mlflow.entities.Metric, list[Any](), 0.0
        # To make the tables of a store, or an experiment in it, twice at once is an error.
        with self._asking(), FileLock(store.with_suffix(".lock"), timeout=120):
            self.client: Any = mlflow.MlflowClient(tracking_uri=self.address)
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
        self.waiting += [self.metric(name, float(v), now, record.round) for name, v in scalars(record).items()]
        if time.monotonic() - self.sent_at > _SEND_EVERY_S or len(self.waiting) > _MOST_WAITING:
            self._send()

    def _send(self) -> None:
        with self._asking():
            for start in range(0, len(self.waiting), _MOST_AT_ONCE):
                self.client.log_batch(self.run_id, metrics=self.waiting[start : start + _MOST_AT_ONCE])
        self.waiting, self.sent_at = [], time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        # What ended the run is what is worth saying, if MLflow fails as well.
        with self._asking() if kind is None else suppress(Exception):
            self._send()
            self.client.set_terminated(self.run_id, "FINISHED" if kind is None else "FAILED")


class WandB(Tracker):
    """A run of Weights & Biases, offline in the run's folder unless WANDB_MODE says online.

    `wandb sync everfed-out/sweep/runs/*/wandb/offline-run-*` uploads what was written offline. The runs of a sweep are
    one group of the project everfed, or of WANDB_PROJECT.
    """

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.wandb = extra("wandb", "tracking with Weights & Biases needs", "wandb")
        folder.mkdir(parents=True, exist_ok=True)
        self.experiment, self.folder = experiment, folder
        self.run: Any = None

    def record(self, record: RoundRecord) -> None:
        if self.run is None:
            self.run = self._begun()
        self.run.log(scalars(record) | {"round": record.round})

    def _begun(self) -> Any:
        """The run of this folder: the one from before goes on."""
        remembered = self.folder / "wandb-run"
        known = remembered.read_text(encoding="utf-8").strip() if remembered.exists() else ""
        run_id = known or secrets.token_hex(4)
        remembered.write_text(run_id, encoding="utf-8")
        sweep = self.folder.parent.parent if self.folder.parent.name == "runs" else self.folder.parent
        try:
            run = self.wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "everfed",
                group=sweep.name or None,
                name=self.folder.name,
                id=run_id,
                resume="allow",
                dir=str(self.folder),
                mode=os.environ.get("WANDB_MODE") or "offline",
                config=config.flat(config.to_dict(self.experiment)),
                reinit="create_new",
                settings=self.wandb.Settings(silent=True, console="off"),
            )
        except Exception as error:
            raise InputError(
                f"Weights & Biases failed: {first_line(error)}; log in with wandb login, set WANDB_MODE=offline, or go "
                "on without --track wandb: the run itself is in its folder."
            ) from error
        # Rounds are the axis: those after the last checkpoint come again when a run is resumed.
        run.define_metric("round")
        run.define_metric("*", step_metric="round")
        return run

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if self.run is not None:
            with suppress(Exception) if kind else nullcontext():
                self.run.finish(exit_code=0 if kind is None else 1)


def store_of(folder: Path, name: str) -> Path:
    """Where a tracker keeps what runs share: beside a sweep's folder `runs`, or in the run's own folder.

    >>> store_of(Path("out/sweep/runs/greedy"), "mlflow.db").as_posix(), store_of(Path("mine"), "mlflow.db").as_posix()
    ('out/sweep/mlflow.db', 'mine/mlflow.db')
    """
    own = folder / name
    return own if folder.parent.name != "runs" or own.exists() else folder.parent.parent / name


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


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
