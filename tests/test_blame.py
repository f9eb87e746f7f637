"""Of data on demand, a number outside of a model's table is refused with the client that holds it."""

import numpy as np
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.data.on_demand_sources import Generated

ROWS, CLIENTS = 9, 6
FLEET = ef.Fleet.from_cycles([1, 1, 2, 2, 3, 3])


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.drop, self.out = nn.Embedding(ROWS, 4), nn.Dropout(0.2), nn.Linear(4, ROWS)

    def forward(self, tokens, scale=None):
        h = self.drop(self.table(tokens))
        return self.out(h if scale is None else h * scale[..., None])


class Source:
    """One client holds this number alone."""

    def __init__(self, bad, value, named):
        self.bad, self.value, self.named = bad, value, named

    def __len__(self):
        return CLIENTS

    def sizes(self):
        return np.full(CLIENTS, 4)

    def read(self, clients):
        y = np.concatenate([np.random.default_rng(client).integers(0, ROWS, (4, 5)) for client in clients])
        x = np.where(np.repeat(clients, 4)[:, None] == self.bad, self.value, y)
        return ({"tokens": x, "scale": np.ones(x.shape, np.float32)} if self.named else x), y


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("value", [ROWS, ROWS + 1, 77, -1])
@pytest.mark.parametrize("bad", [1, 3, 5])
@pytest.mark.parametrize("trainer", ["auto", "batched", "one-by-one"])
def test_the_client_is_named(trainer, bad, value, named):
    torch.manual_seed(0)
    of = " of 'tokens'" if named else ""
    said = rf"^the model fails on samples of client {bad} \(.*whole numbers{of} from {value} to {value}; each must"
    with pytest.raises(ef.InputError, match=said):
        ef.simulate(
            Tokens(),
            ef.OnDemand(Source(bad, value, named), classes=ROWS),
            FLEET,
            rounds=6,
            batch_size=3,
            trainer=trainer,
            progress=False,
        )


def test_an_index_error_of_another_kind_is_the_users_own():
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(x) if not self.training or float(x.min()) < 50 else [][0]

    source = Generated([4] * 3, lambda client: (np.full((4, 2), 30.0 * client), np.zeros(4, int)))
    with pytest.raises(IndexError):
        ef.simulate(
            Wrong(), ef.OnDemand(source, classes=2), ef.Fleet.from_cycles([1] * 3), rounds=2, batch_size=2,
            trainer="one-by-one", check_trainer=False, progress=False,
        )  # fmt: skip
