"""What a server of rounds keeps in its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from everfed.flower.energy_reports import books_of_table, books_table


def saved(server: Any) -> dict[str, Tensor]:
    """What later rounds of a `RoundServer` depend on, and the books of clients that may never come back."""
    granted = [(client, round) for client, rounds in enumerate(server.granted) for round in sorted(rounds)]
    return {
        "protocol.come": torch.from_numpy(server.joining.come.copy()),
        "protocol.run": torch.tensor(server.run),
        "protocol.level": torch.tensor(server.supply.level),
        "protocol.own": torch.tensor(server.ledger.own),
        "protocol.due": torch.tensor(server.ledger.due),
        "protocol.norms": torch.tensor(server.norms.state()),
        "protocol.standing": torch.tensor(server.standing.state()),
        "protocol.energy": torch.tensor(books_table(server.energy, len(server.fleet))),
        "protocol.asking_j": torch.tensor(server.asking_j),
        "protocol.passed": torch.tensor(server.supply.passed),
        "protocol.granted": torch.tensor(granted, dtype=torch.int64).reshape(-1, 2).T.contiguous(),
        "protocol.asleep": torch.tensor(server.sleepers.until),
        "protocol.next_at": torch.tensor(server.sleepers.next_at, dtype=torch.float64),
    }


def restore(server: Any, state: Mapping[str, Tensor]) -> None:
    if "protocol.come" in state:  # older ones had none, nor a number of their run
        server.joining.load(state["protocol.come"].cpu().numpy())
    server.run = int(state.get("protocol.run", server.run))
    server.ledger.own = state["protocol.own"].cpu().numpy().copy()
    server.granted = [set() for _ in range(len(server.fleet))]
    for client, round in state["protocol.granted"].T.tolist():
        server.granted[client].add(round)
    if "protocol.asleep" in state:  # which earlier versions did not save
        server.sleepers.load(state["protocol.asleep"].cpu().numpy(), float(state["protocol.next_at"]))
    if "protocol.level" not in state:  # saved by a version that kept no more
        return
    server.ledger.due = state["protocol.due"].cpu().numpy().copy()
    server.norms.restore(state["protocol.norms"].cpu().numpy())
    server.standing.restore(state["protocol.standing"].cpu().numpy())
    server.energy = books_of_table(state["protocol.energy"].cpu().numpy())
    server.asking_j = state["protocol.asking_j"].cpu().numpy().copy()
    server.supply.advance(int(state["protocol.passed"]) - 1)
    server.supply.level = state["protocol.level"].cpu().numpy().copy()
