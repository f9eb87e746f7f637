"""Algorithm 1 of Güler & Yener (2021) in plain PyTorch: one loop, no library.

40 clients share the digits. A client of cycle E harvests the energy of one round every E rounds.
It trains in a random round of each window of E rounds and scales its update by E, so that every
client counts by its data on average, however seldom it can train.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

N, ROUNDS, LOCAL_STEPS, BATCH, LR = 40, 120, 5, 10, 0.1
torch.manual_seed(0)

digits = load_digits()
order = torch.randperm(len(digits.target))
x = torch.tensor(digits.data / 16, dtype=torch.float32)[order]
y = torch.tensor(digits.target)[order]
test_x, test_y, x, y = x[:360], y[:360], x[360:], y[360:]

mine = [torch.arange(i, len(y), N) for i in range(N)]  # the samples of client i
share = [len(m) / len(y) for m in mine]  # p_i
cycle = [(1, 5, 10, 20)[i % 4] for i in range(N)]  # E_i
slot = [0] * N  # the round in which client i trains next

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def local_training(w, i):
    """What client i learns in a round that starts from the server's parameters w: w_i - w."""
    vector_to_parameters(w.clone(), model.parameters())
    for _ in range(LOCAL_STEPS):
        batch = mine[i][torch.randint(len(mine[i]), (BATCH,))]
        loss = F.cross_entropy(model(x[batch]), y[batch])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= LR * gradient
    return parameters_to_vector(model.parameters()).detach() - w


w = parameters_to_vector(model.parameters()).detach()
for r in range(ROUNDS):
    update = torch.zeros_like(w)
    for i in range(N):
        if r % cycle[i] == 0:  # a unit of energy has arrived: pick a round of the window that opens
            slot[i] = r + int(torch.randint(cycle[i], ()))
        if r == slot[i]:
            update += share[i] * cycle[i] * local_training(w, i)
    w = w + update

vector_to_parameters(w, model.parameters())
accuracy = (model(test_x).argmax(dim=1) == test_y).float().mean().item()
print(f"test accuracy {accuracy:.3f}")
