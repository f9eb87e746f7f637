"""A small text task in files, for runs whose experiment travels to other processes."""

import numpy as np

from everfed.data.folder import Folder
from everfed.data.partition import Natural
from everfed.learning.models.sequences import CharLstm


def token_task(folder, clients):
    """Settings of an experiment: tokens with ignored places in the files of a folder, one client each, and an LSTM."""
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(clients), np.arange(clients) + 6)
    x = draw.integers(0, 9, (len(owner), 5))
    y = np.where(np.arange(5) < draw.integers(2, 6, (len(owner), 1)), (x + 1) % 9, -100)
    y[0, 0] = 8  # the whole vocabulary occurs
    for name, values in (("x", x), ("y", y), ("client", owner)):
        np.save(folder / f"{name}.npy", values)
    model = CharLstm(embedding=4, hidden=6, layers=2, dropout=0.2)
    return {"data": Folder(str(folder)), "split": Natural(), "model": model}
