"""Theory against simulation, on problems where every constant is known."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import everfed as ef
from everfed.errors import InputError
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import UniformWindow
from everfed.testbed import logistic, measure, quadratics
from everfed.testbed.quadratics import Forms, half_square
from everfed.testbed.steady import (
    METHODS_COMPARED,
    coin_mse,
    paper_fleet,
    steady,
    trajectory,
    window_bias,
    window_mse,
)

SMALL = ef.Fleet.from_cycles([1, 2, 4, 5] * 2)
# Each method with a constant that is proven for it.
THEOREM = [
    ("algorithm1", "windows"),
    ("algorithm1", "windows_smooth"),
    ("lattice", "windows"),
    ("bernoulli", "independent"),
    ("fedavg", "independent"),
]
PAPER, CENTRES = paper_fleet()


def load(name):
    """A script of experiments/ as a module."""
    path = Path(__file__).parents[1] / "experiments" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = load("theory")  # it also holds the errors that a prototype, written apart from this code, found


@pytest.fixture(scope="module")
def forms():
    """Quadratics in 40 dimensions: so many that one run's gap is already nearly its mean."""
    return quadratics(8, 40)


@pytest.fixture(scope="module")
def digits():
    return logistic(SMALL, "by-energy", mu=0.5, pixels=4, batch_size=1)


def slope_at(problem, w, client):
    """The gradient of one client's whole loss by torch, from the data as the simulator has them."""
    n = problem.data.samples_of(client)
    flat = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    parts = flat.split([p.numel() for p in problem.module.parameters()])
    shapes = [(name, p.shape) for name, p in problem.module.named_parameters()]
    weights = {name: part.view(shape) for (name, shape), part in zip(shapes, parts, strict=True)}
    x, y = torch.as_tensor(problem.data.x[n]).double(), torch.as_tensor(problem.data.y[n])
    out = torch.func.functional_call(problem.module.double(), weights, (x,))
    loss = problem.loss(out, y.double() if y.is_floating_point() else y) + problem.weight_decay / 2 * flat @ flat
    loss.backward()
    problem.module.float()
    return loss.item(), flat.grad.numpy()


def per_sample(problem, w, client):
    """[samples, d]: the gradient of every sample of a client."""
    held = problem.data.samples_of(client)
    return np.stack([_one(problem, w, n) for n in held])


def _one(problem, w, sample):
    data = problem.data
    alone = type(data)(
        data.x, data.y, np.array([sample]), np.array([0, 1]), data.test_x, data.test_y, data.classes
    )  # fmt: skip
    return slope_at(type(problem)(**{**vars(problem), "data": alone}), w, 0)[1]


@pytest.mark.parametrize("which", ["forms", "digits"])
class TestConstants:
    """What a problem says of itself, checked with gradients that torch finds."""

    @pytest.fixture
    def problem(self, which, request):
        return request.getfixturevalue(which)

    @pytest.fixture
    def places(self, problem):
        """Points of the ball in which the constants are said to hold, its surface among them."""
        chance = np.random.default_rng(1)
        away = chance.normal(size=(6, len(problem.optimum)))
        away *= problem.radius / np.linalg.norm(away, axis=1, keepdims=True)
        return problem.optimum + away * np.array([0.1, 0.3, 0.6, 1.0, 1.0, 1.0])[:, None]

    def test_nothing_pulls_at_the_optimum(self, problem):
        shares = problem.data.shares()
        found = [slope_at(problem, problem.optimum, i) for i in range(len(shares))]
        assert np.linalg.norm(shares @ np.array([g for _, g in found])) < 1e-9
        assert shares @ np.array([v for v, _ in found]) == pytest.approx(problem.minimum, abs=1e-12)
        assert problem.value(problem.optimum) == pytest.approx(problem.minimum)

    def test_the_value_is_that_of_the_data(self, problem, places):
        shares = problem.data.shares()
        value = shares @ np.array([slope_at(problem, places[0], i)[0] for i in range(len(shares))])
        assert problem.value(places[0]) == pytest.approx(value, rel=1e-9)

    def test_heterogeneity_is_what_a_common_model_costs(self, problem, places):
        assert problem.heterogeneity > 0
        assert np.all(problem.local_minima < problem.minimum + 1)
        for w in places:  # no client's loss goes below its own minimum
            assert all(slope_at(problem, w, i)[0] > problem.local_minima[i] for i in range(len(SMALL)))

    def test_curvature_lies_between_mu_and_l(self, problem, places):
        for i, (v, w) in itertools.product(range(3), itertools.pairwise(places)):
            turn = (slope_at(problem, v, i)[1] - slope_at(problem, w, i)[1]) @ (v - w) / np.sum((v - w) ** 2)
            assert problem.mu * (1 - 1e-6) <= turn <= problem.L * (1 + 1e-6)

    def test_no_single_sample_curves_more_than_it_says(self, problem, places):
        for v, w in itertools.pairwise(places[:3]):
            change = np.linalg.norm(per_sample(problem, v, 0) - per_sample(problem, w, 0), axis=1)
            assert np.all(change <= problem.sample_smoothness * np.linalg.norm(v - w) * (1 + 1e-6))
        assert problem.sample_smoothness >= problem.L

    def test_gradients_are_no_longer_than_g_and_no_noisier_than_sigma(self, problem, places):
        for w in places[-2:]:
            each = per_sample(problem, w, 0)
            noise = np.square(each - each.mean(axis=0)).sum(axis=1).mean() / problem.batch_size
            assert noise <= problem.sigma[0] ** 2 * (1 + 1e-6)
            assert noise + np.sum(each.mean(axis=0) ** 2) <= problem.G**2

    def test_the_steepest_sample_at_the_optimum(self, problem):
        lengths = np.linalg.norm(per_sample(problem, problem.optimum, 1), axis=1)
        assert lengths.max() <= problem.steepest * (1 + 1e-6)


def test_a_quadratic_s_noise_is_the_same_everywhere(forms):
    each = per_sample(forms, forms.optimum + 1.0, 2)
    assert np.square(each - each.mean(axis=0)).sum(axis=1).mean() == pytest.approx(forms.sigma[2] ** 2, rel=1e-6)


def test_alike_clients_have_no_heterogeneity():
    assert quadratics(4, 3, spread=0.0, noise=0.0).heterogeneity == pytest.approx(0.0, abs=1e-12)


def test_bad_problems_are_refused():
    with pytest.raises(InputError, match="0 < mu <= L"):
        quadratics(mu=2.0, L=1.0)
    with pytest.raises(InputError, match="must be positive"):
        logistic(SMALL, mu=0.0)
    with pytest.raises(InputError, match="divisor of 8"):
        logistic(SMALL, pixels=3)


class TestTheBoundHolds:
    """The real simulator under the theorem's step size."""

    @pytest.mark.parametrize(("method", "constant"), THEOREM)
    def test_on_quadratics_with_the_theorem_s_rate(self, forms, method, constant):
        found = measure(
            forms, SMALL, method, rounds=250, local_steps=2, seeds=range(2), points=15, constant=constant
        )  # fmt: skip
        assert found.inside
        assert found.iterations[-1] == 500
        assert np.all(found.each > 0)
        assert np.all(found.mean < found.bounds)
        assert found.slope() == pytest.approx(-1.0, abs=0.3)

    @pytest.mark.parametrize(("method", "constant"), THEOREM)
    def test_on_the_digits(self, digits, method, constant):
        found = measure(digits, SMALL, method, rounds=80, local_steps=2, seeds=range(2), points=10, constant=constant)
        assert found.inside
        assert np.all(found.mean < found.bounds)
        assert found.mean[-1] < found.mean[0]

    def test_it_is_within_a_factor_of_ten_where_it_has_little_to_cover(self):
        """One local step, clients alike, FedAvg: what is left are the theorem's own inequalities."""
        alike = quadratics(8, 40, spread=0.0, L=2.0)
        found = measure(alike, SMALL, "fedavg", rounds=30, local_steps=1, seeds=range(2), points=5)
        assert found.inside
        assert np.all(found.mean < found.bounds)
        assert np.min(found.bounds / found.mean) < 10

    def test_what_is_not_proven_is_not_measured_against_it(self, forms):
        with pytest.raises(InputError, match="'independent' is not proven for algorithm1; use one of windows_smooth"):
            measure(forms, SMALL, "algorithm1", rounds=1, constant="independent")
        with pytest.raises(InputError, match="no theorem covers this"):
            measure(forms, SMALL, "greedy", rounds=1)

    def test_a_run_that_leaves_the_ball_is_not_called_inside(self, forms):
        near = type(forms)(**{**vars(forms), "radius": 0.5})
        assert not measure(near, SMALL, "fedavg", rounds=1, local_steps=2, seeds=range(2), points=1).inside


class TestThePage:
    def test_is_what_the_script_makes_of_the_numbers(self):
        found = json.loads((SCRIPT.RESULTS / "theory.json").read_text(encoding="utf-8"))
        text = load("theory_page").page(found, SCRIPT.PROTOTYPE)
        assert text == (SCRIPT.RESULTS / "theory.md").read_text(encoding="utf-8")

    def test_the_published_numbers_keep_what_the_theory_promises(self):
        found = json.loads((SCRIPT.RESULTS / "theory.json").read_text(encoding="utf-8"))
        for problem in found["gaps"]["problems"].values():
            for run in problem["methods"].values():
                assert run["below"]
                assert run["inside"]
        steady, (fleet, centres) = found["steady"], paper_fleet()
        formulas = {"coin_formula": coin_mse, "window_formula": window_mse, "bias_formula": window_bias}
        for name, formula in formulas.items():
            assert steady[name] == pytest.approx([formula(fleet, centres, a) for a in steady["steps"]])
        for name, values in SCRIPT.PROTOTYPE.items():
            mse = [cell["mse"] for cell in found["steady"]["table"][name]]
            assert mse == pytest.approx(values, rel=0.15, abs=1e-12)


class TestQuadraticTable:
    @pytest.mark.parametrize("name", SCRIPT.PROTOTYPE)
    @pytest.mark.parametrize("column", [1, 4], ids=["a=.1, no noise", "a=.3, noise 2"])
    def test_mean_square_errors_within_15_percent(self, name, column):
        step, noise = SCRIPT.SETTINGS[column]
        found = steady(METHODS_COMPARED[name], PAPER, CENTRES, step, noise, seeds=60, rounds=400, warm_up=500)
        assert found.mse == pytest.approx(SCRIPT.PROTOTYPE[name][column], rel=0.15, abs=1e-12)

    @pytest.mark.parametrize("noise", [0.0, 2.0])
    def test_coins_have_a_formula(self, noise):
        found = steady(METHODS_COMPARED["bernoulli"], PAPER, CENTRES, 0.2, noise, seeds=100, rounds=500, warm_up=100)
        assert found.mse == pytest.approx(coin_mse(PAPER, CENTRES, 0.2, noise), abs=4 * found.mse_error)
        assert found.mse_error < 0.05 * found.mse

    def test_windows_err_by_the_square_of_the_step_and_coins_by_the_step(self):
        def mse(name, step, warm_up):
            return steady(METHODS_COMPARED[name], PAPER, CENTRES, step, seeds=80, rounds=500, warm_up=warm_up).mse

        windows = [mse("algorithm1", a, 600) for a in (0.01, 0.02)]
        assert windows[1] / windows[0] == pytest.approx(4.0, rel=0.15)
        assert windows[0] == pytest.approx(window_mse(PAPER, CENTRES, 0.01), rel=0.15)
        assert windows[0] < coin_mse(PAPER, CENTRES, 0.01) / 10
        coins = [mse("bernoulli", a, 100) for a in (0.05, 0.1)]
        assert coins[1] / coins[0] == pytest.approx(2.0, rel=0.15)

    def test_windows_pull_towards_rare_clients_in_proportion_to_the_step(self):
        assert window_bias(PAPER, CENTRES, 1.0) == pytest.approx(0.0969, abs=5e-5)
        found = steady(METHODS_COMPARED["algorithm1"], PAPER, CENTRES, 0.02, seeds=150, rounds=1200, warm_up=200)
        assert found.bias == pytest.approx(0.0969 * 0.02, rel=0.15)
        assert found.bias > 5 * found.bias_error

    def test_coins_pull_nowhere(self):
        found = steady(METHODS_COMPARED["bernoulli"], PAPER, CENTRES, 0.1, seeds=100, rounds=800, warm_up=100)
        assert abs(found.bias) < 4 * found.bias_error < 0.01


def scalar_run(method, centres, fleet, *, rounds, seed, curvature=None, start=0.0, lr=0.2, local_steps=2):
    """w after each round of the real simulator on losses curvature * (w - c)^2 / 2, no noise."""
    roots = np.sqrt(np.ones(len(centres)) if curvature is None else curvature)
    pairs = [(np.full((1, 1, 1), s), np.full((1, 1), s * c)) for s, c in zip(roots, centres, strict=True)]
    run = ef.start(
        Forms(np.array([start])), pairs, fleet, method, rounds=rounds, local_steps=local_steps, batch_size=1,
        client=ef.SGD(lr), loss=half_square, seed=seed, device="cpu",
    )  # fmt: skip
    return [run.server.params.item() for _ in run]


class TestTheRealSimulator:
    @pytest.mark.parametrize("name", METHODS_COMPARED)
    def test_takes_the_very_path_of_the_scalar_rules(self, name):
        method = METHODS_COMPARED[name]
        step = 1 - (1 - 0.2) ** 2
        with pytest.warns(ef.EverfedWarning):
            real = scalar_run(method, CENTRES, PAPER, rounds=45, seed=7)
        scalar = [w.item() for w in trajectory(method, PAPER, CENTRES, step, 0.0, 45, np.array([7]), 0.0)]
        np.testing.assert_allclose(real, scalar, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(("method", "product"), [("algorithm1", 0.7286), ("fedavg", 0.7396)])
    def test_two_rounds_of_a_window_are_not_two_steps_of_fedavg(self, method, product):
        fleet, curvature = ef.Fleet.from_cycles([2, 2, 2]), np.array([0.5, 1.0, 2.0])
        # One seed for each way that three clients can choose one of two rounds; shares by numbers of samples.
        seeds = {}
        for seed in range(100):
            schedule = Schedule(fleet, UniformWindow(), seed)
            seeds.setdefault(tuple(schedule.step(0)[0].tolist()), seed)
        assert len(seeds) == 8
        pairs = [(np.full((n, 1, 1), s), np.zeros((n, 1))) for n, s in zip((2, 3, 5), np.sqrt(curvature), strict=True)]
        ends = []
        for seed in seeds.values():
            run = ef.start(
                Forms(np.array([1.0])), pairs, fleet, method, rounds=2, local_steps=1, batch_size=1,
                client=ef.SGD(0.1), loss=half_square, seed=seed, device="cpu",
            )  # fmt: skip
            list(run)
            ends.append(run.server.params.item())
        assert np.mean(ends) == pytest.approx(product, abs=1e-6)
