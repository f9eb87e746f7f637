"""The table of recorded runs: each a name and its settings, in the words of experiment files."""

from __future__ import annotations

from typing import Any, NamedTuple

STOP_AT = 5  # rounds after which the runs that are cut off are cut off


class Case(NamedTuple):
    name: str
    words: dict[str, Any]  # FOLDER stands for a temporary one
    how: str = "plain"  # or checkpoint, stored, killed, ray, flower
    task: str = ""  # a model and data of recorded_tasks.py in place of the words' own
    state: str = "worker"  # on Ray: where the clients' state lives
    needs: tuple[str, ...] = ()  # modules
    same_as: str = ""  # the case whose results it must have as well


# What the settings of a case change.
BASE: dict[str, Any] = {
    "fleet": {"kind": "cycles", "clients": 8, "cycles": [1, 2, 4]},
    "model": {"kind": "mlp", "hidden": 8},
    "client": {"kind": "sgd", "lr": 0.1},
    "rounds": 12,
    "local_steps": 3,
    "batch_size": 5,
    "eval_every": 4,
    "device": "cpu",
    "check_trainer": False,
}

_METHODS = (
    "algorithm1", "greedy", "wait-for-all", "fedavg", "greedy-normalized", "greedy-scaled", "algorithm1-unscaled",
    "self-weighted", "known-arrivals", "lattice", "fixed-phase", "ht-varp", "fedvarp", "last-updates", "mifa", "fedau",
    "echo", "fedawe", "scaffold", "ht-scaffold", "truncated", "bernoulli",
)  # fmt: skip

_MOMENTUM = {"client.momentum": 0.9, "client.weight_decay": 0.01}
_ADAM = {"client": {"kind": "adam", "lr": 0.01}}
_LONG = {"rounds": 16, "method": "ht-varp", **_MOMENTUM, "server_optimizer": "momentum"}
_DEVICES = {"fleet.kind": "devices", "fleet.round_s": 21600.0, "rounds": 20, "eval_every": 10}
_ESP32 = {"count": 4, "device": "esp32", "radio": "lora-sf7", "step_s": 50.0, "battery_wh": 0.5, "spread": 0.1}
_SUN = [
    {**_ESP32, "site": "miami", "panel_wp": 0.02},
    {"count": 3, "site": "sand-point", "panel_wp": 0.5, "switched_off": True, "step_s": 420.0},
]
_TRACE = [{"count": 5, "trace": "FOLDER/supply.csv", "trace_scale": 6.0, "battery_wh": 5.0, "radio": "lte"}]
_THIN = [
    {**_ESP32, "trace": "FOLDER/supply.csv", "trace_scale": 2e-4, "battery_wh": 0.01, "step_s": 1.0}
]  # radio rules
_ARRAYS = {"fleet.clients": 6}
_WORK = {"work.duration": 0.4, "work.spread": 0.2, "work.local_steps": "affordable"}
_KERNELS = {"trainer": "kernels", "rounds": 3, "local_steps": 2, "fleet.clients": 4}
_FLOWER = {"fleet.clients": 4, "rounds": 8}


def _cases() -> list[Case]:
    cases = [Case(f"method-{name}", {"method": name}) for name in _METHODS if name != "truncated"]
    cases += [
        # Trainers and the clients' optimisers.
        Case("one-by-one", {"trainer": "one-by-one"}),
        Case("batched", {"trainer": "batched"}),
        Case("batched-checked", {"trainer": "batched", "check_trainer": True}, same_as="batched"),
        Case("kernels-sgd", _KERNELS, needs=("triton",)),
        Case("kernels-adam", {**_KERNELS, **_ADAM}, needs=("triton",)),
        Case("kernels-qsgd", {**_KERNELS, **_MOMENTUM, "compression": "qsgd"}, needs=("triton",)),
        Case("momentum-one-by-one", {**_MOMENTUM, "trainer": "one-by-one"}),
        Case("momentum-batched", {**_MOMENTUM, "trainer": "batched"}),
        Case("adam-one-by-one", {**_ADAM, "trainer": "one-by-one"}),
        Case("adam-batched", {**_ADAM, "trainer": "batched", "client.weight_decay": 0.01}),
        Case("adam", _ADAM),
        Case("adam-fresh", {**_ADAM, "keep_state": False}),
        Case("momentum-fresh", {**_MOMENTUM, "keep_state": False, "trainer": "one-by-one"}),
        Case("rate-constant", {"client.schedule": "constant"}, same_as="method-algorithm1"),
        Case("rate-inverse-time", {"client.schedule": {"kind": "inverse-time", "gamma": 5.0}}),
        Case("rate-cosine", {"client.schedule": {"kind": "cosine", "final": 0.1}}),
        # The server.
        Case("method-truncated", {"method": "truncated", "server.limit": 2.0}),  # the default is above every scale
        Case("server-sgd", {"server_optimizer": {"kind": "sgd", "lr": 0.5}}),
        Case("server-momentum", {"server_optimizer": {"kind": "momentum", "lr": 0.5}}),
        Case("server-adam", {"server_optimizer": {"kind": "adam", "lr": 0.05}}),
        Case("server-yogi", {"server_optimizer": {"kind": "yogi", "lr": 0.05}}),
        Case("server-adagrad", {"server_optimizer": {"kind": "adagrad", "lr": 0.05}}),
        Case("policy-thrifty", {"policy": {"kind": "thrifty", "chance": 0.5}, "fleet.arrivals": "bernoulli"}),
        # Without rounds.
        Case("method-renewal", {"method": "renewal", "work.duration": 0.4}),
        Case("method-renewal-discounted", {"method": "renewal-discounted", **_WORK, "fleet.arrivals": "trickle"}),
        Case("method-fedbuff", {"method": "fedbuff", "server.size": 3, **_WORK, "server_optimizer": "momentum"}),
        Case("method-fedasync", {"method": "fedasync", "work.duration": 0.4, "server.discount": "hinge"}),
        Case("method-area", {"method": "area", **_MOMENTUM, "work.duration": 1.0, "fleet.arrivals": "bernoulli"}),
        Case("fedbuff-checkpoint", {"method": "fedbuff", "server.size": 3, **_WORK, "server_optimizer": "momentum"},
             how="checkpoint", same_as="method-fedbuff"),
        Case("mifa-at-once", {"method": "mifa", "server.wait": False}),
        Case("scaffold-one-by-one", {"method": "scaffold", "trainer": "one-by-one"}),
        Case("fedawe-one-by-one", {"method": "fedawe", "trainer": "one-by-one"}),
        Case("rules-on-disk", {"method": "ht-varp", "server.place": "disk"}, same_as="method-ht-varp"),
        Case("scaffold-on-disk", {"method": "scaffold", "server.place": "disk"}, same_as="method-scaffold"),
        # Updates on their way, and gradients.
        Case("none", {"compression": "none"}, same_as="method-algorithm1"),
        Case("qsgd", {"compression": {"kind": "qsgd", "bits": 4, "bucket": 64}}),
        Case("rand-k", {"compression": {"kind": "rand-k", "keep": 0.25}, "trainer": "one-by-one"}),
        Case("adaptive-qsgd", {**_DEVICES, "fleet.groups": _THIN, "compression": "adaptive-qsgd"}),
        Case("proximal", {"gradients": [{"kind": "proximal", "mu": 0.5}]}),
        Case("clip", {"gradients": [{"kind": "clip", "norm": 0.5}], "trainer": "one-by-one"}),
        Case("both-rules", {"gradients": [{"kind": "clip", "norm": 0.5}, {"kind": "proximal", "mu": 0.5}], **_ADAM}),
        # Data, models and seeds.
        Case("iid", {"split": "iid"}),
        Case("dirichlet", {"split": {"kind": "dirichlet", "alpha": 0.2}}),
        Case("dirichlet-groups", {"split": {"kind": "dirichlet", "per": "energy-group"}}),
        Case("by-energy-half", {"split": {"kind": "by-energy", "strength": 0.5}}),
        Case("validation", {"validation": 0.2}),
        Case("other-seed", {"seed": 7}),
        Case("own-seeds", {"split_seed": 1, "init_seed": 2, "batch_seed": 3, "schedule_seed": 4}),
        Case("logistic", {"model": "logistic"}),
        Case("small-cnn", {"model": "small-cnn", "rounds": 5}),
        Case("small-cnn-one-by-one", {"model": "small-cnn", "rounds": 5, "trainer": "one-by-one"}),
        Case("synthetic", {"data": {"kind": "synthetic", "samples": 12, "side": 4}, "split.strength": 0.5}),
        Case("state-on-disk", {"data": "synthetic", "split": "iid", **_ADAM, "state_place": "disk"}),
        Case("adam-on-disk", {**_ADAM, "state_place": "disk", "trainer": "batched"}, same_as="adam"),
        # Energy.
        Case("lump-offsets", {"fleet.arrivals": "lump", "fleet.offsets": [0, 1, 3]}),
        Case("trickle", {"fleet.arrivals": "trickle", "method": "greedy"}),
        Case("bernoulli", {"fleet.arrivals": "bernoulli", "method": "greedy"}),
        Case("uniform-in-block", {"fleet.arrivals": "uniform-in-block", "fleet.capacity": 2.0}),
        Case("markov", {"fleet.arrivals": "markov", "fleet.spell": 3.0, "method": "self-weighted"}),
        Case("foresight", {"fleet.arrivals": "bernoulli", "method": "known-arrivals", "rounds": 16}),
        Case("sun", {**_DEVICES, "fleet.groups": _SUN}, needs=("pvlib",)),
        Case("sun-greedy", {**_DEVICES, "fleet.groups": _SUN, "fleet.cost_spread": 0.1, "method": "greedy-scaled"},
             needs=("pvlib",)),
        Case("trace", {**_DEVICES, "fleet.groups": _TRACE}),
        # What only Python can say.
        Case("regression", _ARRAYS, task="regression"),
        Case("tokens", {**_ARRAYS, **_ADAM, "trainer": "batched"}, task="tokens"),
        Case("tokens-one-by-one", {**_ARRAYS, **_ADAM, "trainer": "one-by-one"}, task="tokens"),
        Case("quadratic", {**_ARRAYS, "method": "scaffold"}, task="quadratic"),
        Case("own-loss", {**_ARRAYS, "trainer": "one-by-one"}, task="own-loss"),
        Case("divergence-skipped", {**_ARRAYS, "method": "fedavg"}, task="strange-client"),
        Case("dropout-batched", {**_ARRAYS, "trainer": "batched"}, task="dropout"),
        Case("dropout-one-by-one", {**_ARRAYS, "trainer": "one-by-one"}, task="dropout"),
        Case("dropout-kernels", {**_KERNELS, "fleet.clients": 6, "rounds": 2, "local_steps": 1}, task="dropout",
             needs=("triton",)),
        Case("centre-crop", _ARRAYS, task="centre-crop"),
        Case("crop-flip", {**_ARRAYS, **_ADAM}, task="crop-flip"),
        Case("little-memory", {**_ARRAYS, **_MOMENTUM, "trainer": "batched"}, task="little-memory"),
        # Cut off and resumed.
        Case("whole", _LONG),
        Case("checkpoint", _LONG, how="checkpoint", same_as="whole"),
        Case("checkpoint-fedawe", {"method": "fedawe"}, how="checkpoint", same_as="method-fedawe"),
        Case("checkpoint-adam-fedau", {**_ADAM, "method": "fedau", "fleet.arrivals": "markov"}, how="checkpoint"),
        Case("stored", _LONG, how="stored", same_as="whole"),
        Case("stored-trace", {**_DEVICES, "fleet.groups": _TRACE}, how="stored", same_as="trace"),
        Case("killed", _LONG, how="killed", same_as="whole"),
        # Elsewhere.
        Case("ray-worker", {"rounds": 8, **_MOMENTUM}, how="ray", needs=("ray",)),
        Case("ray-driver", {"rounds": 8, **_ADAM, "compression": "qsgd", "trainer": "one-by-one"}, how="ray",
             state="driver", needs=("ray",)),
        Case("flower", _FLOWER, how="flower", needs=("flwr",)),
        Case("flower-varp", {**_FLOWER, "method": "ht-varp", **_MOMENTUM}, how="flower", needs=("flwr",)),
    ]  # fmt: skip
    return cases


CASES: dict[str, Case] = {case.name: case for case in _cases()}
