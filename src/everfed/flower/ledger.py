"""The books of a deployment: participations planned, done, lost and refused, and what the losses did.

One line a round in `deployment.jsonl` beside the run's records, and a summary at the end.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.store.files import write_atomically

FILE = "deployment.jsonl"


@dataclass
class Entry:
    """What happened in one round. planned = done + lost + refused, by clients."""

    round: int
    reachable: int = 0  # nodes that could be asked
    joined: list[int] = field(default_factory=list)  # clients that have come, and have their shares from here on
    absent: dict[int, str] = field(default_factory=dict)  # not heard, or not in their round, with the reason
    planned: list[int] = field(default_factory=list)  # said yes and were let
    done: list[int] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)  # of those planned
    lost: dict[int, str] = field(default_factory=dict)  # said yes and vanished, with the reason
    refused: dict[int, str] = field(default_factory=dict)  # their update must not count
    shortened: dict[int, float] = field(default_factory=dict)  # done, but multiplied by this, being too long
    odd: dict[int, str] = field(default_factory=dict)  # done, but what they say of themselves is far from the others'
    turned_away: dict[str, str] = field(default_factory=dict)  # nodes whose answer must not count
    failed: dict[str, str] = field(default_factory=dict)  # nodes that could not answer, with the reason
    silent: int = 0  # reachable, but no answer in time, or none that could be given
    late: dict[str, str] = field(default_factory=dict)  # nodes whose reply to the last round came after its deadline
    query_s: float = 0.0
    train_s: float = 0.0
    models_sent: int = 0
    bytes_sent: int = 0  # content of all messages, without Flower's envelopes
    bytes_received: int = 0
    asking_j: float = 0.0  # joules that being asked has cost the devices so far, as they say


class Ledger:
    """Entries of all rounds, kept in a file if there is a folder."""

    def __init__(self, shares: Floats, folder: Path | None = None) -> None:
        self.shares, self.path = shares, folder / FILE if folder else None
        self.entries: list[Entry] = read(folder) if folder else []
        self.own = np.zeros(len(shares), np.int64)  # planned by the clients' own schedules, as they last said
        self.due = np.zeros(len(shares), np.int64)  # planned by the experiment while they could not be heard

    def rewind(self, round: int) -> None:
        """Forget what a killed server wrote after its checkpoint."""
        self.entries = [e for e in self.entries if e.round < round]
        self.amend()

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(_line(entry))

    def amend(self) -> None:
        """Write again what was written of the last round: something has been added to it."""
        if self.path:
            write_atomically(self.path, "".join(_line(e) for e in self.entries))

    def hear(self, client: int, planned: int) -> None:
        self.own[client] = max(self.own[client], planned)

    def counts(self, what: str) -> Ints:
        """How often each client was 'planned', 'done', 'lost' or 'refused'."""
        found = np.zeros(len(self.shares), np.int64)
        for entry in self.entries:
            np.add.at(found, np.array(list(getattr(entry, what)), np.int64), 1)
        return found

    def summary(self) -> dict[str, Any]:
        """Totals, and the bias that lost participations caused.

        A client that delivers a part q of what it planned counts q times its share. Were q the same for
        all, the model would only learn more slowly; what differs is bias. `bias` is half the sum of
        |share * q / mean q - share|: the part of the weight that went to the wrong clients.
        """
        planned, done, lost, refused = (self.counts(w) for w in ("planned", "done", "lost", "refused"))
        # A node that was cut off says later what it missed; of one that does not come back, the experiment knows.
        meant = np.maximum(planned + self.due, self.own)
        delivered = np.where(meant > 0, done / np.maximum(meant, 1), 1.0)
        mean = float(self.shares @ delivered)
        weights = self.shares * delivered / mean if mean > 0.0 else self.shares
        worst = int(np.argmin(delivered))
        return {
            "rounds": len(self.entries),
            "planned": int(planned.sum()),
            "done": int(done.sum()),
            "lost": int(lost.sum()),
            "refused": int(refused.sum()),
            "shortened": sum(len(e.shortened) for e in self.entries),
            "missed": int((meant - planned).sum()),  # planned while nobody could ask
            "turned_away": sum(len(e.turned_away) for e in self.entries),
            "empty_rounds": sum(not e.done for e in self.entries),
            "delivered": mean,
            "bias": float(np.abs(weights - self.shares).sum() / 2.0),
            "worst_client": worst,
            "worst_delivered": float(delivered[worst]),
            "longest_query_s": max((e.query_s for e in self.entries), default=0.0),
            "longest_train_s": max((e.train_s for e in self.entries), default=0.0),
            "models_sent": sum(e.models_sent for e in self.entries),
            "bytes_sent": sum(e.bytes_sent for e in self.entries),
            "bytes_received": sum(e.bytes_received for e in self.entries),
            "asking_j": max((e.asking_j for e in self.entries), default=0.0),
        }


def read(folder: Path) -> list[Entry]:
    """The entries of a run folder; a line that a power cut left unfinished is not one."""
    try:
        lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    entries = []
    for line in lines:
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            break
        if isinstance(found.get("absent"), list):  # of versions that did not say why
            found["absent"] = dict.fromkeys(found["absent"], "")
        for key in ("lost", "refused", "absent", "shortened", "odd"):
            found[key] = {int(client): why for client, why in found.get(key, {}).items()}
        entries.append(Entry(**found))
    return entries


def _line(entry: Entry) -> str:
    return json.dumps(asdict(entry)) + "\n"
