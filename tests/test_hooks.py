"""Every kind of hook that torch has on a module or its parameters is honoured, or the module is refused."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as of_all_modules

import everfed as ef
from everfed.run.fingerprint import fingerprint

FLEET = ef.Fleet.from_cycles([1, 1])
RUN = {"rounds": 2, "local_steps": 3, "batch_size": 4, "client": ef.SGD(0.1, momentum=0.5), "device": "cpu"}
draw = np.random.default_rng(0)
ROWS = draw.normal(size=(2, 6)).astype(np.float32)


def data():
    """All samples of a client are the same, so that it does not matter which are drawn."""
    return ef.from_arrays([(np.tile(row, (4, 1)), np.full(4, i)) for i, row in enumerate(ROWS)], classes=3)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def scaled(parts):
    return tuple(None if part is None else 0.5 * part for part in parts)


def mask(gradient):
    return gradient * (torch.arange(len(gradient)) == 0)[:, None]


def in_place(parameter):
    parameter.grad[1:] = 0.0


def inside(layer, inputs, output):
    if output.requires_grad:
        output.register_hook(lambda gradient: 0.5 * gradient)


def watched(module):
    return module[0].register_forward_hook(inside)


ON_GRADIENTS = {
    "register_hook": lambda m: m[2].weight.register_hook(mask),
    "register_post_accumulate_grad_hook": lambda m: m[0].weight.register_post_accumulate_grad_hook(in_place),
    "register_full_backward_hook": lambda m: m[2].register_full_backward_hook(lambda layer, ins, outs: scaled(ins)),
    "register_full_backward_pre_hook": lambda m: m[2].register_full_backward_pre_hook(lambda layer, outs: scaled(outs)),
    "register_backward_hook": lambda m: m[1].register_backward_hook(lambda layer, ins, outs: scaled(ins)),
    "register_module_full_backward_hook": lambda m: of_all_modules.register_module_full_backward_hook(
        lambda layer, ins, outs: scaled(ins) if isinstance(layer, nn.Tanh) else None
    ),
    "register_module_full_backward_pre_hook": lambda m: of_all_modules.register_module_full_backward_pre_hook(
        lambda layer, outs: scaled(outs) if isinstance(layer, nn.Tanh) else None
    ),
}
ON_CALLS = {
    "register_forward_hook": lambda m: m[0].register_forward_hook(lambda layer, ins, out: 0.5 * out),
    "register_forward_pre_hook": lambda m: m[0].register_forward_pre_hook(lambda layer, ins: scaled(ins)),
    "with keywords": lambda m: m[0].register_forward_hook(lambda layer, ins, kw, out: 0.5 * out, with_kwargs=True),
    "register_module_forward_hook": lambda m: of_all_modules.register_module_forward_hook(
        lambda layer, ins, out: 0.5 * out if isinstance(layer, nn.Tanh) else None
    ),
}


@pytest.fixture
def hook():
    """Registers a hook of a kind, until the test ends."""
    handles = []

    def register(kind, module):
        handles.append(
            (ON_GRADIENTS | ON_CALLS | {"inside": lambda m: m[0].register_forward_hook(inside)})[kind](module)
        )
        return module

    yield register
    for handle in handles:
        handle.remove()


def by_hand(hook, kind, trained):
    """FedAvg of two clients, each with a module whose hooks were never copied."""
    now, states = model().state_dict(), [None, None]
    for _ in range(RUN["rounds"]):
        ends = []
        for client, row in enumerate(ROWS):
            module = model()
            if not kind.startswith("register_module"):
                hook(kind, module)
            module.load_state_dict(now)
            rule = torch.optim.SGD(module.parameters(), 0.1, momentum=0.5)
            if states[client]:
                rule.load_state_dict(states[client])
            for _ in range(RUN["local_steps"]):
                rule.zero_grad()
                F.cross_entropy(module(torch.tensor(row).expand(4, 6)), torch.full((4,), client)).backward()
                rule.step()
            states[client] = copy.deepcopy(rule.state_dict())
            ends.append(module.state_dict())
        now = {name: (ends[0][name] + ends[1][name]) / 2 for name in now}
    for name, value in now.items():
        torch.testing.assert_close(trained.params[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("trainer", ["auto", "one-by-one"])
@pytest.mark.parametrize("kind", [*ON_GRADIENTS, *ON_CALLS, "inside"])
def test_hooks_are_honoured(hook, kind, trainer):
    plain = ef.simulate(model(), data(), FLEET, trainer=trainer, **RUN)
    with_hook = hook(kind, model())
    if kind == "inside" and trainer == "auto":
        with pytest.warns(ef.EverfedWarning, match="taking 'one-by-one' instead"):
            trained = ef.simulate(with_hook, data(), FLEET, trainer=trainer, **RUN)
    else:
        trained = ef.simulate(with_hook, data(), FLEET, trainer=trainer, **RUN)
    assert any(not torch.equal(trained.params[name], value) for name, value in plain.params.items())
    by_hand(hook, kind, trained)


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("check_trainer", [True, False])
@pytest.mark.parametrize("kind", ON_GRADIENTS)
def test_a_batch_over_clients_refuses_hooks_on_gradients(hook, kind, check_trainer):
    with pytest.raises(ef.InputError, match="has hooks on gradients, which vmap would not call"):
        ef.simulate(hook(kind, model()), data(), FLEET, trainer="batched", check_trainer=check_trainer, **RUN)


@pytest.mark.parametrize("kind", ON_CALLS)
def test_a_batch_over_clients_calls_hooks_on_calls(hook, kind):
    module = hook(kind, model())
    fast, slow = (ef.simulate(module, data(), FLEET, trainer=t, **RUN) for t in ("batched", "one-by-one"))
    for name, value in slow.params.items():
        torch.testing.assert_close(fast.params[name], value, rtol=1e-4, atol=1e-6)


def test_a_hook_that_fails_is_told_before_training():
    module = model()
    module[0].weight.register_hook(lambda gradient: gradient[100])
    with pytest.raises(ef.InputError, match="fails in its backward pass"):
        ef.simulate(module, data(), FLEET, **RUN)


def test_hooks_that_belong_to_one_set_of_tensors_are_refused():
    module = model()
    handle = torch.autograd.graph.register_multi_grad_hook(tuple(module.parameters()), lambda gradients: None)
    with pytest.raises(ef.InputError, match="belongs to these very tensors"):
        ef.simulate(module, data(), FLEET, **RUN)
    handle.remove()
    ef.simulate(module, data(), FLEET, **RUN)


def test_hooks_on_parameters_do_not_get_lost_on_the_way_to_other_processes(hook):
    experiment = ef.Experiment(data=data(), fleet=FLEET, model=model())
    assert pickle.loads(pickle.dumps(experiment)).rounds == experiment.rounds
    for kind in ("register_hook", "register_post_accumulate_grad_hook"):
        hooked = ef.Experiment(data=data(), fleet=FLEET, model=hook(kind, model()))
        with pytest.raises(ef.InputError, match="does not travel to other processes"):
            pickle.dumps(hooked)


def test_another_hook_is_another_run(hook):
    prints = {fingerprint(model()), *(fingerprint(hook(kind, model())) for kind in list(ON_GRADIENTS)[:5])}
    assert len(prints) == 6
    assert fingerprint(hook("register_hook", model())) in prints
