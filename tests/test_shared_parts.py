"""Frozen parts of a model are shared by all clients: as copies, in memory, and with adapters of low rank."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import everfed as ef
from everfed.learning.layout import copied
from zoo import CLASSES, LENGTH, LoRA, Tokens, frozen, gpt, with_lora


class live_bytes(TorchDispatchMode):
    """The most bytes that tensors made inside hold at once; those of the module were there before."""

    def __init__(self, module=None):
        super().__init__()
        self.known, self.now, self.peak = {}, 0, 0
        for parameter in module.parameters() if module else ():
            self.known[parameter.untyped_storage().data_ptr()] = parameter

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        return found

    def _note(self, storage):
        # A storage is one object in Python as long as it lives, so that its end is seen.
        address = storage.data_ptr()
        if address and address not in self.known:
            self.known[address] = weakref.finalize(storage, self._gone, address, storage.nbytes())
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)

    def _gone(self, address, size):
        self.known.pop(address, None)
        self.now -= size


def size(module, trained=None):
    return sum(4 * p.numel() for p in module.parameters() if trained in (None, p.requires_grad))


def started(model, trainer, clients, shape=(LENGTH,), classes=CLASSES, **settings):
    chance = np.random.default_rng(0)
    parts = [
        (chance.integers(0, CLASSES, (3, *shape)).astype(np.float32), np.arange(3) % classes) for _ in range(clients)
    ]
    given = ef.from_arrays(parts, test=parts[0])
    settings = {"rounds": 2, "local_steps": 1, "batch_size": 1, "client": ef.SGD(0.1), **settings}
    return ef.start(
        model, given, ef.Fleet.from_cycles([1] * clients), "fedavg", trainer=trainer, device="cpu", **settings
    )


def round_of(run):
    clients = np.arange(len(run.setup.data))
    return torch.cat([part.deltas for part in run.source.trainer.train(run.server.params, clients, 0)])


def test_the_count_sees_tensors_come_and_go():
    kept = torch.zeros(1000)
    with live_bytes() as count:
        one = kept + 1
        two = one * 2
        view = two[:10]
        del one, two
        gc.collect()
        assert (count.now, count.peak) == (4000, 8000)
        del view
    gc.collect()
    assert count.now == 0


def backbone(width=400):
    """Most of it is frozen."""
    return nn.Sequential(
        *(frozen(nn.Linear(n, width)) for n in (LENGTH, width, width)), nn.Tanh(), nn.Linear(width, CLASSES)
    )


def test_copies_share_what_is_frozen_and_nothing_else():
    model = Tokens(with_lora(gpt(), 2))
    copy = copied(model)
    for (name, mine), other in zip(model.named_parameters(), copy.parameters(), strict=True):
        assert (mine is other) == (not mine.requires_grad), name
    assert torch.equal(copy.eval()(torch.ones(2, LENGTH)), model.eval()(torch.ones(2, LENGTH)))
    elsewhere = copied(model, torch.device("meta"))
    assert not {id(p) for p in model.parameters()} & {id(p) for p in elsewhere.parameters()}


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
def test_forty_clients_need_one_backbone(trainer):
    model = backbone()
    run = started(model, trainer, 40, check_trainer=False)
    own = {id(p) for p in model.parameters() if not p.requires_grad}
    assert own <= {id(p) for p in run.source.trainer.module.parameters()}
    with live_bytes(run.source.trainer.module) as count:
        round_of(run)
    # What all 40 clients need beside it is small: their rows a quarter of a backbone, a few times.
    assert size(model, trained=False) > 1_200_000
    assert count.peak < size(model, trained=False)


def test_what_is_shared_is_not_counted_for_every_client():
    """So that chunks are as large as memory allows."""
    wide, narrow = (started(backbone(width), "batched", 3).source.trainer for width in (800, 400))
    assert size(wide.module, trained=False) > 5_000_000
    assert wide.bytes_per_client < 500_000
    assert narrow.bytes_per_client < wide.bytes_per_client


def test_forty_adapters_of_a_model_of_100_million_parameters_fit_beside_it():
    """The model once, and less than half of it for the rows, gradients and activations of all clients."""
    torch.manual_seed(0)
    model = ef.build("char-gpt", (LENGTH,), CLASSES, layers=8, width=1024, heads=8)
    model = Tokens(with_lora(model, 8, only=("qkv",)))
    assert 100e6 < size(model) / 4 < 105e6
    run = started(model, "batched", 40, check_trainer=False)
    assert run.source.trainer.at_once == 40
    with live_bytes(run.source.trainer.module) as count:
        deltas = round_of(run)
    assert (deltas.norm(dim=1) > 0).all()
    assert size(model) + count.peak < 1.5 * size(model)


def test_adapters_of_peft_train_batched_as_one_by_one():
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")

    class Last(nn.Module):
        """A causal language model of transformers as a classifier by its last position."""

        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            tokens = x.long()
            return self.inner(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[:, -1]

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=CLASSES, n_positions=LENGTH, n_embd=8, n_layer=2, n_head=2, use_cache=False
    )
    adapters = peft.LoraConfig(r=2, lora_alpha=4, lora_dropout=0.2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = Last(peft.get_peft_model(transformers.GPT2LMHeadModel(config), adapters))
    assert size(model, trained=True) < size(model, trained=False)
    auto, plain = (started(model, trainer, 4, local_steps=3, batch_size=2) for trainer in ("auto", "one-by-one"))
    assert "batched over clients" in auto.source.trainer.explain()[0]
    torch.testing.assert_close(round_of(auto), round_of(plain), rtol=1e-3, atol=2e-6)
    assert float(round_of(plain).norm()) > 1e-4


def test_adapters_start_as_the_frozen_model():
    layer = LoRA(nn.Linear(6, 5), 2)
    x = torch.randn(3, 6)
    assert torch.equal(layer(x), layer.base(x))


@pytest.mark.filterwarnings("ignore::everfed.errors.EverfedWarning")
@pytest.mark.parametrize("adapted", [False, True])
def test_models_of_transformers_train_as_they_are(adapted):
    """Inputs by name with padding, and of the outputs the logits."""
    transformers = pytest.importorskip("transformers")
    draw = np.random.default_rng(0)

    def texts(count):
        tokens, mask = draw.integers(0, 20, (count, 6)), np.arange(6) < draw.integers(3, 7, (count, 1))
        return {"input_ids": tokens, "attention_mask": mask}, np.where(mask, (tokens + 1) % 20, -100)

    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, use_cache=False)
    model = transformers.GPT2LMHeadModel(config)
    if adapted:
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    data = ef.from_arrays([texts(12) for _ in range(3)], test=texts(10))
    fleet = ef.Fleet.from_cycles([1, 2, 3])
    settings = {"rounds": 3, "local_steps": 2, "batch_size": 4, "client": ef.SGD(0.5), "device": "cpu"}
    fast, slow = (ef.simulate(model, data, fleet, trainer=trainer, **settings) for trainer in ("auto", "one-by-one"))
    for name, value in slow.params.items():
        torch.testing.assert_close(fast.params[name], value, rtol=1e-3, atol=1e-5)
    assert math.isfinite(fast.final.own["perplexity"])
