"""Tasks and models beyond plain images on a GPU: batched = one by one there too; a token outside a table is told."""

import gc

import numpy as np
import pytest
import torch

import everfed as ef
from everfed.learning.models import MODELS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FLEET = ef.Fleet.from_cycles([1, 1, 2, 3])
TEXT = {"char-lstm": {"hidden": 32}, "char-gpt": {"width": 32, "layers": 2}}
PICTURES = {
    "resnet18-gn": ((3, 32, 32), {}), "mobilenet-gn": ((3, 32, 32), {}), "ds-cnn": ((1, 49, 10), {}),
    "har-cnn": ((6, 100), {}),
}  # fmt: skip


def text(draw, count):
    x = draw.integers(0, 20, (count, 16))
    y = (x + 1) % 20
    y[:, 12:] = -100
    return x, y


def run(model, data, trainer, **settings):
    settings = {"rounds": 3, "local_steps": 2, "batch_size": 8, "client": ef.SGD(0.05), "device": "cuda"} | settings
    return ef.simulate(model, data, FLEET, trainer=trainer, check_trainer=False, **settings)


def agree(model, data, tolerance, **settings):
    fast, slow = (run(model, data, trainer, **settings) for trainer in ("batched", "one-by-one"))
    start = run(model, data, "one-by-one", **{**settings, "client": ef.SGD(1e-30)}).params
    moved = torch.cat([(slow.params[name] - start[name]).reshape(-1) for name in start])
    apart = torch.cat([(fast.params[name] - slow.params[name]).reshape(-1) for name in start])
    assert float(apart.norm() / moved.norm()) < tolerance
    assert float(moved.norm()) > 0


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("name", TEXT)
def test_models_of_text_are_batched_right(name, lora):
    draw = np.random.default_rng(0)
    data = ef.from_arrays([text(draw, 20 + 3 * i) for i in range(4)], test=text(draw, 20))
    options = TEXT[name] | ({"lora": lora} if name == "char-gpt" else {"dropout": 0.3 * bool(lora)})
    agree(MODELS[name](**options), data, 0.02)


@pytest.mark.parametrize("name", PICTURES)
def test_models_of_signals_and_pictures_are_batched_right(name):
    shape, options = PICTURES[name]
    draw = np.random.default_rng(0)
    pairs = [(draw.normal(size=(20, *shape)), draw.integers(0, 5, 20)) for _ in range(4)]
    # One step: GroupNorm over few numbers turns rounding into differences that grow from step to step.
    agree(MODELS[name](**options), ef.from_arrays(pairs, test=pairs[0]), 0.02, rounds=1, local_steps=1)


class Constants(torch.nn.Linear):
    """Its constants come from the CPU in every pass, which no recording can repeat."""

    def forward(self, x):
        return super().forward(x) * torch.tensor([1.0, 2.0, 3.0], device=x.device)


RECORDED = {
    "char-lstm": (MODELS["char-lstm"](hidden=32, dropout=0.3), (16,)),
    "char-gpt": (MODELS["char-gpt"](width=32, layers=2, dropout=0.1), (16,)),
    "har-cnn": (MODELS["har-cnn"](), (6, 100)),
    "constants": (Constants(6, 3), (6,)),
}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_passes_repeat_the_plain_ones(name, precision):
    model, shape = RECORDED[name]
    draw = np.random.default_rng(0)
    fleet = ef.Fleet.from_cycles([1, 2, 3] * 8)
    if len(shape) == 1 and name != "constants":
        pairs = [text(draw, 20) for _ in range(len(fleet))]
    else:
        pairs = [(draw.normal(size=(20, *shape)), draw.integers(0, 3, 20)) for _ in range(len(fleet))]
    ends = []
    for recorded in (True, False):
        torch.manual_seed(0)
        run = ef.start(model, ef.from_arrays(pairs), fleet, "algorithm1", rounds=12, local_steps=3, batch_size=8,
                       client=ef.SGD(0.05), device="cuda", precision=precision, trainer="batched", check_trainer=False,
                       strict_horizon=False)  # fmt: skip
        trainer = run.source.trainer
        start = run.server.params.clone()
        if not recorded:
            trainer.gradients = trainer._gradients
        for _ in run:
            pass
        ends.append(run.server.params - start)
        if recorded and name == "constants":
            assert "looks at results" in trainer.gradients.refused, trainer.gradients.refused
        elif recorded:
            assert trainer.gradients.refused == ""
            assert len(trainer.gradients.graphs) > 1
    assert float((ends[0] - ends[1]).norm() / ends[1].norm()) < (1e-3 if precision == "float32" else 0.05)


def test_a_token_outside_the_table_is_told_and_the_gpu_goes_on():
    draw = np.random.default_rng(0)
    pairs = [text(draw, 9) for _ in range(4)]
    pairs[2][0][3, 4] = 25
    data = ef.from_arrays(pairs)
    with pytest.raises(ef.InputError, match="the highest number, 25"):
        run(MODELS["char-lstm"](hidden=8), data, "auto")
    assert float(torch.ones(3, device="cuda").sum()) == 3.0


def test_forty_adapters_need_the_memory_of_one_model():
    """A decoder of 100 M parameters with adapters of rank 8 for 40 clients, beside one batch through the model."""
    model = MODELS["char-gpt"](layers=14, width=768, heads=12, lora=8)
    draw = np.random.default_rng(0)
    pairs = [(draw.integers(0, 80, (4, 32)), draw.integers(0, 80, (4, 32))) for _ in range(40)]
    data, fleet = ef.from_arrays(pairs), ef.Fleet.from_cycles([1] * 40)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()  # of other tests
    ran = ef.start(
        ef.Experiment(data=data, fleet=fleet, model=model, rounds=2, local_steps=2, batch_size=1, device="cuda",
                      check_trainer=False, client=ef.SGD(0.1))
    )  # fmt: skip
    size = sum(p.numel() for p in ran.setup.module.parameters()) * 4
    for _ in ran:
        pass
    used = torch.cuda.max_memory_allocated() - before
    activations = _activations(ran.setup.module, torch.tensor(data.x[:40], device="cuda"))
    print(f"model {size / 2**20:.0f} MiB, activations {activations / 2**20:.0f} MiB, used {used / 2**20:.0f} MiB")
    assert size > 380e6
    assert used < 1.5 * size + activations


def _activations(module, x):
    """What one batch of all participants' samples takes beside the model."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.nn.functional.cross_entropy(module(x).flatten(0, 1), x.flatten()).backward()
    return torch.cuda.max_memory_allocated() - before
