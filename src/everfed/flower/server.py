"""A run whose clients are devices on a network: its rounds come over Flower.

The loop, the server rule, its optimiser, evaluation, checkpoints and records are those of every run. Where a run on
this machine plans and trains, this one asks the clients and collects what they send. `server_app` is a whole
ServerApp of an experiment, `remote_run` its run on a grid.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from everfed.data.federated import FederatedData
from everfed.errors import InputError
from everfed.flower.arrival_server import ArrivalServer
from everfed.flower.client import load_experiment
from everfed.flower.codec import Codec
from everfed.flower.downlink import Downlink
from everfed.flower.exposure import warn_if_open
from everfed.flower.identity import Roster
from everfed.flower.joining import check_rule
from everfed.flower.ledger import Ledger
from everfed.flower.limits import RoundLimits
from everfed.flower.own_data import sized, told_of
from everfed.flower.round_server import RoundServer
from everfed.flower.run_config import flag, limits_in
from everfed.flower.wire import Shapes
from everfed.learning.task import Trained
from everfed.run.asynchronous import AsynchronousRun
from everfed.run.experiment import Experiment
from everfed.run.flight import Flight
from everfed.run.history import RoundRecord
from everfed.run.loop import Run
from everfed.run.rounds import Training
from everfed.run.setup import Setup
from everfed.scheduling.plan import PlanStep
from everfed.server.step import Server
from everfed.store import stored_rounds
from everfed.store.files import write_atomically
from everfed.store.lock import is_running

if TYPE_CHECKING:
    from everfed.flower.client import Described

log = logging.getLogger("flwr.everfed")

# What a summary says of rounds alone: where updates count for the time since the last, a lost one moves no weight.
_OF_ROUNDS = ("missed", "delivered", "bias", "worst_client", "worst_delivered", "empty_rounds")


def server_app(
    experiment: Described,
    *,
    data: FederatedData | None = None,
    sizes: Sequence[int] | None = None,
    test: Any = None,
    classes: int | None = None,
) -> ServerApp:
    """A ServerApp that runs the experiment on the nodes there are, and writes a run folder.

    The run's configuration says the rest: `folder` (where to write; an interrupted run goes on there), `keys` (a folder
    of the clients' public keys; without it nodes are believed), `set` (changes to the experiment), `late-joiners`
    (true: clients have no share until they are first heard), `differences` (true: clients that hold an earlier model
    are sent what has changed) and the names of `RoundLimits` with dashes (`query-s`, `train-s`, ...). Methods without
    rounds need `round-s`, the seconds of a round of time. Other keys are the apps' own.
    data: what the server knows of the clients' data, their sizes and a test set; None: the experiment's. Where only
    the devices have training data, give instead: sizes, each client's number of samples; test, an (x, y) pair or one
    per client; classes, unless all of them are in the test set. Devices are told classes and task with the model.
    """
    if data is not None and sizes is not None:
        raise InputError("data and sizes are both given; data tell the sizes.")
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = dict(context.run_config)
        chosen = load_experiment(experiment, settings)
        folder = Path(str(settings.get("folder") or "everfed-out/flower")).expanduser()
        keys = settings.get("keys")
        roster = Roster.read(Path(str(keys)).expanduser()) if keys else None
        limits, late, differences = limits_in(settings), flag(settings, "late-joiners"), flag(settings, "differences")
        known = data if sizes is None else sized(sizes, test, task=chosen.task, classes=classes)
        _await_folder(folder, limits.wait_s)
        summary: dict[str, Any] = {}
        opened = {"open_control_api": found} if (found := warn_if_open()) else {}
        for record, ledger in stored_remote_rounds(
            chosen, grid, folder, data=known, limits=limits, roster=roster, late_joiners=late,
            differences=differences,
        ):  # fmt: skip
            entry = ledger.entries[-1]
            log.info(
                "round %d: %d planned, %d done, %d lost, %d refused%s",
                record.round + 1, len(entry.planned), len(entry.done), len(entry.lost), len(entry.refused),
                f", accuracy {record.metrics.accuracy:.3f}" if record.metrics and record.metrics.accuracy else "",
            )  # fmt: skip
            spoken = {"brownouts": record.energy.brownouts, "violations": record.energy.violations}
            summary = {**ledger.summary(), **spoken}
            if chosen.asynchronous:
                summary = {name: value for name, value in summary.items() if name not in _OF_ROUNDS}
            write_atomically(folder / "deployment.json", json.dumps({**summary, **opened}, indent=1) + "\n")
        if chosen.asynchronous and summary:
            log.info("%(lost)d of %(planned)d works were lost and %(refused)d refused", summary)
        elif summary:
            log.info(
                "%(lost)d of %(planned)d participations were lost and %(refused)d refused, %(missed)d missed while "
                "disconnected; %(bias)s of the weight went to other clients than it should",
                {**summary, "bias": f"{summary['bias']:.1%}"},
            )

    return app


def _await_folder(folder: Path, patience_s: float) -> None:
    """A server whose SuperLink was killed takes a while to notice; until then it holds the folder."""
    until = time.monotonic() + patience_s
    while is_running(folder) and time.monotonic() < until:
        time.sleep(1.0)


class RemoteRounds:
    """Rounds as the clients live them: they decide, train and send."""

    def __init__(self, round_server: RoundServer, grid: Grid, shapes: Shapes) -> None:
        self.round_server, self.grid, self.shapes = round_server, grid, shapes
        self.ledger = round_server.ledger

    def next(self, round: int, params: Tensor) -> tuple[PlanStep, Iterable[Trained]]:
        return self.round_server.round(self.grid, round, params, self.shapes)

    def training(self) -> Training:
        clients = len(self.round_server.fleet)
        return Training("Flower", clients, ["the whole model: by the clients, over the network"], None)

    def state_dict(self) -> dict[str, Tensor]:
        """The clients' own state stays with them."""
        return self.round_server.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.round_server.load_state_dict(state)


def remote_run(
    experiment: Experiment,
    grid: Grid,
    *,
    data: FederatedData | None = None,
    limits: RoundLimits | None = None,
    roster: Roster | None = None,
    folder: Path | None = None,
    late_joiners: bool = False,
    differences: bool = False,
) -> Run:
    """An experiment whose clients are nodes of this grid: iterate over it for one RoundRecord a round.

    data: what the server knows of the clients' data, their sizes and a test set; None: the experiment's.
    late_joiners: whether clients have no share until they are first heard, as in `joining`. differences: whether those
    that hold an earlier model are sent what has changed, as in `downlink`.
    """
    if late_joiners:
        if experiment.asynchronous:
            raise InputError("late-joiners is true, but without rounds clients may come at any time; leave it out.")
        check_rule(experiment.server)
    if data is not None and experiment.validation:
        raise InputError("validation and data are both given; leave validation at 0 and put its samples into data.")
    if data is not None and experiment.early_stopping.part:
        raise InputError("early_stopping holds samples out of the experiment's own data, and data are given beside it.")
    if experiment.attack.clients:
        raise InputError(f"attack is {experiment.attack}, which is simulated, but these clients are real; remove it.")
    setup = Setup(experiment, data)
    server = setup.server(on_divergence="skip")
    refuse_what_is_not_sent(server)
    if experiment.asynchronous:
        flight = Flight(server.params, experiment.compression, setup.fleet.message_bits, experiment.seeds.batch)
        source = ArrivalServer(
            setup, flight, grid, limits=limits, roster=roster, folder=folder, differences=differences
        )
        setup.look_ahead()
        return AsynchronousRun(setup, source, server, setup.evaluator())
    codec = Codec(experiment.compression, setup.fleet.message_bits, experiment.seeds.batch)
    round_server = RoundServer(
        setup.fleet, experiment.policy, setup.data.shares(), experiment.seeds.schedule,
        limits=limits, roster=roster, folder=folder, late_joiners=late_joiners,
        codec=codec if codec.active else None, downlink=Downlink(experiment.downlink, differences),
    )  # fmt: skip
    round_server.told = told_of(setup.data)
    setup.look_ahead(server.rule.waits)
    rounds = RemoteRounds(round_server, grid, setup.layout.shapes_by_name())
    return Run(setup, rounds, server, setup.evaluator())


def refuse_what_is_not_sent(server: Server) -> None:
    """Refuse server rules that would have to send clients more than the model."""
    if server.rule.gradients:
        raise InputError(
            "this server rule changes the clients' gradients with what the server keeps, which is not sent to "
            "devices; choose another, such as sum or ht-varp."
        )
    if server.rule.starts:
        raise InputError(
            "this server rule starts each client from a model of its own, and over the network all are sent the same; "
            "choose another, such as echo, or simulate it with '--engine local'."
        )


def stored_remote_rounds(
    experiment: Experiment, grid: Grid, folder: Path, **settings: Any
) -> Iterator[tuple[RoundRecord, Ledger]]:
    """`remote_run` in a run folder, with a checkpoint after every round; killed and called again, it goes on there."""
    made: list[Run] = []

    def make(experiment: Experiment) -> Run:
        made.append(remote_run(experiment, grid, folder=folder, **settings))
        return made[0]

    for record in stored_rounds(experiment, folder, checkpoint_s=0.0, make=make):
        source: object = made[0].source
        assert isinstance(source, RemoteRounds | ArrivalServer)
        yield record, source.ledger
