"""The corrected theorem: its values, its limits, what it refuses, and the command that prints it."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import everfed as ef
from everfed.errors import InputError
from everfed.methods import METHODS
from everfed.theory import CONSTANTS, PROVEN, bound
from everfed.theory.coverage import participation

PAPER = [1, 5, 10, 20] * 10
EQUAL = [1 / 40] * 40
GIVEN = {
    "mu": 1.0,
    "L": 4.0,
    "G": 1.0,
    "sigma": 1.0,
    "heterogeneity": 0.5,
    "initial_distance_sq": 1.0,
    "local_steps": 5,
    "iterations": 5000,
}


def paper(cycles=PAPER, shares=EQUAL, **changes):
    return bound(cycles, shares, **{**GIVEN, **changes})


class TestValues:
    def test_the_paper_s_profile(self):
        result = ef.theory.bound(PAPER, EQUAL, **GIVEN)
        assert (result.kappa, result.gamma) == (4.0, 32.0)
        assert pytest.approx(140.025) == result.B
        assert result.constants["paper"] == 40000.0
        assert result.constants["independent"] == pytest.approx(20.0)
        assert result.paper == pytest.approx(63.8283386, abs=5e-8)
        assert result.independent == pytest.approx(0.2671303657, abs=5e-11)
        assert result.learning_rate == 2.0 / 32.0

    def test_nothing_is_lost_where_nobody_waits(self):
        result = paper(cycles=[1] * 40)
        assert {name: c for name, c in result.constants.items() if c} == {"paper": 2500 / 25}  # it does not vanish
        assert set(result.validity.values()) == {"everybody in every round"}

    @pytest.mark.parametrize("seed", range(20))
    def test_the_constants_are_ordered(self, seed):
        chance = np.random.default_rng(seed)
        cycles = chance.integers(1, 50, size=chance.integers(1, 30))
        weights = chance.exponential(size=len(cycles))
        result = bound(cycles, weights / weights.sum(), **GIVEN)
        independent, any_dependence, printed = (
            result.constants[name] for name in ("independent", "any_dependence", "paper")
        )
        most = 4 * 25 * (cycles.max() - 1)
        assert independent <= any_dependence * (1 + 1e-12) <= most * (1 + 1e-12) + 1e-12 < printed
        assert result.independent <= result.any_dependence * (1 + 1e-12) < result.paper

    def test_the_windows_of_the_paper_s_profile(self):
        result = paper()
        parts = 1 + 0.2 + 2 * 4 * 0.8 * 0.6625 + 2 * 5 * (4 * 57 / 32 + 9 * 82 / 32 + 19 * 132 / 32) / 4
        assert result.constants["windows"] == pytest.approx(100 * parts)
        assert result.windows == pytest.approx(44.249, abs=5e-4)
        assert result.gammas["windows"] == result.gamma == 32.0
        memory = (5 + 4 / 9) * (4 * 41 / 36 + 9 * 46 / 36 + 19 * 56 / 36) / 160
        assert result.gammas["windows_smooth"] == pytest.approx(4 * 5 * 9)
        assert result.constants["windows_smooth"] == pytest.approx(100 * (0.2 + memory))
        assert result.windows_smooth == pytest.approx(0.55634, abs=5e-6)
        assert result.first_step("windows_smooth") == pytest.approx(2 / 180)

    @pytest.mark.parametrize("name", CONSTANTS)
    def test_a_constant_is_the_sum_of_its_parts(self, name):
        parts = paper().parts[name]
        assert parts.common + parts.each.sum() == pytest.approx(paper().constants[name])
        assert np.all(parts.each[::4] == 0.0)  # who has energy in every round adds nothing

    def test_more_clients_of_a_kind_make_smooth_windows_quieter(self):
        """Each client's own dependence is what is left: it falls like one over the number of clients."""
        few, many = (paper([4] * n, [1 / n] * n).constants["windows_smooth"] for n in (10, 1000))
        assert few == pytest.approx(100 * many)

    def test_one_client_depends_on_nobody(self):
        result = paper(cycles=[7], shares=[1.0])
        assert result.constants["independent"] == pytest.approx(result.constants["any_dependence"])

    def test_every_client_s_part_of_the_constant(self):
        result = paper()
        np.testing.assert_allclose(result.contributions[:4], [0.0, 0.25, 0.5625, 1.1875])
        assert result.contributions.sum() == pytest.approx(result.constants["independent"])

    def test_sigma_may_differ_between_clients(self):
        alike = paper(sigma=[2.0] * 40)
        assert paper(sigma=2.0).to_dict() == alike.to_dict()
        one = np.zeros(40)
        one[3] = 40.0
        assert pytest.approx(1.0) == paper(sigma=one).B - paper(sigma=0.0).B

    def test_many_local_steps_raise_gamma_and_the_start_counts_in_full(self):
        # The printed theorem has 4 L kappa / (gamma + K) here: below the loss at the start, which no bound can be.
        result = paper(L=1.0, G=0.0, sigma=0.0, heterogeneity=0.0, local_steps=50, iterations=0)
        assert result.gamma == 50.0
        assert result.independent == pytest.approx(0.5)
        assert 4.0 / result.gamma < 0.5

    @pytest.mark.parametrize("changes", [{}, {"local_steps": 1}, {"local_steps": 60, "iterations": 6000}, {"L": 1.0}])
    def test_it_covers_the_recursion_it_is_derived_from(self, changes):
        result = paper(**changes)
        for name, constant in result.constants.items():
            rates = 2.0 / (result.mu * (result.gammas[name] + np.arange(result.iterations + result.local_steps)))
            assert rates[0] <= 1 / (4 * result.L)
            assert np.all(rates[: -result.local_steps] <= 2 * rates[result.local_steps :] * (1 + 1e-12))
            distance = result.initial_distance_sq
            for t in range(result.iterations):
                distance = (1 - rates[t] * result.mu) * distance + rates[t] ** 2 * (result.B + constant)
                assert result.L / 2 * distance <= result.at(t + 1, name) * (1 + 1e-9)


class TestUse:
    def test_the_curve_falls_like_one_over_k(self):
        result = paper()
        curve = result.curve([0, 5, 5000, 50_000])
        for name in CONSTANTS:
            assert curve[name][2] == pytest.approx(getattr(result, name))
            gamma = result.gammas[name]
            np.testing.assert_allclose(curve[name] * (gamma + curve["iterations"]), curve[name][0] * gamma)

    def test_the_curve_ends_at_the_bound_s_own_iterations(self):
        curve = paper().curve()
        assert curve["iterations"][-1] == 5000
        assert np.all(curve["iterations"] % 5 == 0)
        assert np.all(np.diff(curve["iterations"]) > 0)

    @pytest.mark.parametrize("constant", CONSTANTS)
    @pytest.mark.parametrize("target", [1e-6, 0.1, 0.2671303657, 3.0, 39.9])
    def test_required_iterations_are_the_fewest(self, target, constant):
        result = paper()
        needed = result.required_iterations(target, constant)
        assert needed % 5 == 0
        assert result.at(needed, constant) <= target
        assert needed == 0 or result.at(needed - 5, constant) > target

    def test_required_iterations_of_the_bound_itself(self):
        result = paper()
        assert result.required_iterations(result.independent) == 5000

    def test_a_modest_target_needs_no_training(self):
        assert paper().required_iterations(1e6) == 0

    def test_the_labels_say_what_is_proven(self):
        for kind, names in PROVEN.items():
            word = {"everybody": "coins", "lattice": "windows"}.get(kind, kind)
            assert all(word in paper().validity[name] for name in names)

    def test_it_is_plain_data(self):
        document = json.loads(json.dumps(paper().to_dict()))
        assert document["bound"]["independent"] == pytest.approx(0.2671303657)
        assert document["validity"]["independent"] == "independent coins"

    def test_the_numbers_need_no_torch(self):
        """Only `coverage` looks at how a run trains."""
        for path in Path(sys.modules["everfed.theory"].__file__).parent.glob("*.py"):
            if path.stem == "coverage":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not [
                    n
                    for n in names
                    if n.split(".")[0] == "torch" or {"learning", "server", "simulate"} & set(n.split("."))
                ]


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"mu": 0.0}, "mu is 0.0; it must be a positive"),
            ({"mu": 5.0}, "mu <= L"),
            ({"L": float("inf")}, "L is inf"),
            ({"G": -1.0}, "G is -1.0"),
            ({"G": "much"}, "G is 'much'"),
            ({"sigma": -1.0}, "the sigma of client 0, 1"),
            ({"sigma": [1.0, 2.0]}, "2 sigmas were given for 40 clients"),
            ({"sigma": "x"}, "sigma must be numbers"),
            ({"heterogeneity": -0.1}, "heterogeneity is -0.1"),
            ({"initial_distance_sq": float("nan")}, "initial_distance_sq is nan"),
            ({"local_steps": 0}, "local_steps is 0"),
            ({"local_steps": 2.5}, "local_steps is 2.5"),
            ({"iterations": -5}, "iterations is -5"),
            ({"iterations": 5001}, "take 5000 or 5005"),
            ({"shares": EQUAL[:-1]}, "39 shares were given for 40 clients"),
            ({"shares": [0.1] * 40}, "sum to 4"),
            ({"shares": [2.0, -1.0], "cycles": [1, 2]}, "non-negative"),
            ({"shares": "many"}, "shares must be numbers"),
            ({"cycles": [0] * 40}, "the cycle of client 0"),
            ({"cycles": []}, "at least one client"),
        ],
        ids=str,
    )
    def test_bad_input_is_named(self, changes, said):
        with pytest.raises(InputError, match=said.replace("(", r"\(")):
            paper(**changes)

    def test_bad_targets_and_names_are_named(self):
        result = paper()
        with pytest.raises(InputError, match="target is 0"):
            result.required_iterations(0)
        with pytest.raises(InputError, match="more than 2"):
            result.required_iterations(1e-300)
        with pytest.raises(InputError, match="Did you mean 'independent'"):
            result.at(10, "independant")
        with pytest.raises(InputError, match="take 0 or 5"):
            result.curve([3])


class TestCommand:
    OPTIONS = ("--mu", "1", "--L", "4", "--G", "1", "--sigma", "1", "--heterogeneity", "0.5")
    START = (*OPTIONS, "--initial-distance-sq", "1", "--local-steps", "5", "--iterations", "5000")

    @pytest.fixture
    def everfed(self, everfed):
        return lambda *arguments: everfed("bound", *arguments)

    def test_json_holds_what_is_proven_and_for_whom(self, everfed):
        code, out, _ = everfed(*self.START, "--target", "0.1", "--json")
        document = json.loads(out)
        assert code == 0
        assert (document["method"], document["participation"]) == ("algorithm1", "windows")
        assert document["bound"] == pytest.approx({"windows_smooth": 0.55633896, "windows": 44.249046})
        assert document["required_iterations"]["windows"] == paper().required_iterations(0.1, "windows")
        assert set(document["validity"]) == set(document["gamma"]) == set(document["C"]) == set(PROVEN["windows"])

    def test_coins_have_the_three_constants_of_coins(self, everfed):
        document = json.loads(everfed(*self.START, "--method", "bernoulli", "--json")[1])
        assert document["bound"] == pytest.approx(
            {"independent": 0.2671303657, "any_dependence": 1.1056537, "paper": 63.8283386}
        )

    def test_fedavg_waits_for_nobody(self, everfed):
        document = json.loads(everfed(*self.START, "--method", "fedavg", "--json")[1])
        assert document["C"] == {"independent": 0.0}
        assert document["validity"] == {"independent": "everybody in every round"}

    def test_tables_show_groups_and_for_whom_it_is_proven(self, everfed):
        code, out, _ = everfed(*self.START)
        assert code == 0
        for text in ("proven for", "0.556339", "44.249", "E=20", "112.446", "64.2 %"):
            assert text in out
        code, out, _ = everfed(*self.START, "--method", "bernoulli")
        for text in ("independent coins", "63.8283", "0.26713", "11.875", "59.4 %"):
            assert text in out

    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_gets_what_is_proven_or_a_refusal(self, everfed, method):
        code, out, error = everfed(*self.START, "--method", method, "--json")
        chosen = METHODS[method].policy, METHODS[method].server, ef.Fleet.from_cycles(PAPER)
        if code == 0:
            document = json.loads(out)
            assert document["participation"] == participation(*chosen)
            assert set(document["bound"]) == set(PROVEN[participation(*chosen)])
        else:
            with pytest.raises(InputError) as refusal:
                participation(*chosen)
            assert (code, out, error) == (2, "", f"everfed: {refusal.value}\n")

    def test_what_no_theorem_covers_is_refused_without_a_number(self, everfed):
        code, out, error = everfed(*self.START, "--method", "greedy")
        assert (code, out) == (2, "")
        assert error.startswith("everfed: no theorem covers this: greedy clients are not scaled")
        assert error.count("\n") == 1

    def test_iterations_are_rounds_times_local_steps_unless_given(self, everfed):
        options = (*self.OPTIONS, "--initial-distance-sq", "1", "--rounds", "100", "--local-steps", "3", "--json")
        assert json.loads(everfed(*options)[1])["iterations"] == 300

    def test_shares_and_sigmas_are_dealt_as_cycles_are(self, everfed):
        options = ("--clients", "4", "--cycles", "1,2", "--shares", "3,1", "--sigma", "1,2", "--json")
        document = json.loads(everfed(*self.START, *options)[1])
        same = bound([1, 2, 1, 2], [0.375, 0.125] * 2, **{**GIVEN, "sigma": [1, 2, 1, 2]})
        assert document["B"] == pytest.approx(same.B)
        assert document["contributions"]["windows"] == pytest.approx(same.parts["windows"].each.tolist())

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--iterations", "4999"), "take 4995 or 5000"),
            (("--sigma", "a,b"), "give numbers separated by commas"),
            (("--shares", "0"), "at least one client must hold data"),
            (("--clients", "4", "--shares", "1,1,1,1,1"), "at most one per client"),
            (("--mu", "5"), "mu <= L"),
            (("--target", "-1"), "target is -1"),
            (("--offsets", "0,1,2,3"), "start later than round 0"),
            (("--arrivals", "markov"), "some slots cannot be paid for"),
            (("--set", "client=adam"), "the theorem is about plain SGD"),
        ],
        ids=str,
    )
    def test_bad_input_is_one_sentence_and_exit_code_2(self, everfed, options, said):
        code, out, error = everfed(*self.START, *options)
        assert code == 2
        assert said in error
        assert out == ""

    def test_what_is_required_is_asked_for(self, everfed):
        code, _, error = everfed("--mu", "1")
        assert code == 2
        assert "--L" in error
