"""The page of experiments/expected.py: docs/results/expected.md from its figures."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any

TEXT = Template("""# How sure is expected accuracy?

`everfed advise --pilot` and `--experiment` extrapolate a short run and give an interval that should contain the truth
in 90 of 100 cases. Here runs are extrapolated from their first third, sixth and twelfth, and compared with their end.

<!-- not run: takes an hour -->
```sh
everfed data get smartwatch
python experiments/expected.py
```

$cases_run cases under $seeds seeds each ($states), $rounds rounds with an evaluation every $eval_every: methods, rates,
splits, models, energy profiles on the digits, the solar fleet, and the smartwatch. Rates are constant but where the
table says otherwise. Half of the cases, every other one of each kind, say by which factors the intervals are to be
widened (split conformal prediction); the other half tests them. A run is extrapolated from its own evaluations alone;
"both seeds" uses those of two runs together.

## Coverage on the half that did not choose the factors

$tested

- **A third of the run is enough for a useful interval, a twelfth is not.** The median interval of the accuracy is
  $width3 points wide after a third, $width6 after a sixth and $width12 after a twelfth: a pilot
  of 40 rounds hardly says how 480 end.
- **90 % was asked for.** What is inside of the trials, accuracies and losses, may differ from it by 6 points by chance.
- **Bare**: what the curves say. **Widened**: times the factor, with at least a fifth of what is left to gain on each
  side. A factor below 1 narrows; that fifth then does the widening.
- **Error**: mean distance of the expected value from the end, and that of the last value of the pilot, which expects no
  progress.

## By metric

$metrics

**The intervals do not hold for the worst group's accuracy.** It stays near 0 until that group is learnt, then rises,
and nothing before says when. The command says so where it is asked for it.

## By kind of case: accuracy

$kinds

## Where it fails

No curve can know of what has not begun. The last three kinds above chose no factors; the command warns of the first and
the third of them, which it can see.

- **A group that appears late.** $late The curve of the pilot is that of the other groups.
- **A rate that falls until the end** (cosine). $falls
- **A rate that is too high.** $diverges Such runs stay where they are. A run that falls apart later is worse: $unstable
- **A plateau that is none.** A model may first learn the classes of the group that trains most, stay at their share,
  and learn the others later: $plateau

Accuracy, farthest from their intervals:

$misses

## How it works

Curves a + b f(x) in the sum x of the round weights, with f a power or an exponential that ends anywhere, a power that
ends at the best value there can be, or flat; scales and exponents on a grid, a and b by weighted least squares, later
points counting more. Shapes count by how well they fit, by less than a true likelihood would say since none of them is
true. Points that follow one another count as fewer. An interval is that of one evaluation, noise included. The weights
of shapes and points, and the fifth of what is left, were chosen on all of these runs, before the halves were told
apart: coverage on other tasks may be lower. Figures: [expected.json](expected.json).
""")


def page(result: Mapping[str, Any]) -> str:
    kinds, factors = result["kinds"], result["widening"]
    cases = sorted(result["cases"], key=lambda case: -case["needed"] / factors[str(case["ahead"])])

    def farthest(name: str, ahead: int) -> str:
        case = next(case for case in cases if case["name"] == name and case["ahead"] == ahead)
        low, high = _interval(case, factors)
        return (
            f"{name}, was expected to end at {100 * case['value']:.0f} % ({100 * low:.0f} to {100 * high:.0f}) from "
            f"1/{ahead} of its rounds, and ended at {100 * case['end']:.0f} %."
        )

    return TEXT.substitute(
        cases_run=result["cases_run"],
        seeds=len(result["seeds"]),
        states=", ".join(f"{count} runs {state}" for state, count in result["runs"].items()),
        rounds=result["rounds"],
        eval_every=result["eval_every"],
        tested=_table({"one seed": result["tested"], "both seeds": result["both_seeds"]}, factors, errors=False),
        metrics=_table(result["metrics"], factors),
        kinds=_table(kinds, factors, scale=100.0),
        falls=_missed(kinds["rate that falls to the end"]),
        diverges=_missed(kinds["rate too high"]),
        late=_missed(kinds["group that appears late"]),
        unstable=farthest("greedy-scaled, rate 0.3", 3),
        plateau=farthest("greedy, rate 0.05", 12),
        misses=_misses(
            [case for case in cases if case["ahead"] == 3][:6] + [case for case in cases if case["ahead"] > 3][:4],
            factors,
        ),
        **{f"width{a}": f"{100 * result['metrics']['accuracy'][a]['width']:.0f}" for a in ("3", "6", "12")},
    )


def _interval(case: Mapping[str, Any], factors: Mapping[str, float]) -> tuple[float, float]:
    factor = factors[str(case["ahead"])]
    low = case["value"] - factor * (case["value"] - case["low"] + case["floor"])
    high = case["value"] + factor * (case["high"] - case["value"] + case["floor"])
    return max(low, 0.0), min(high, 1.0)


def _table(rows: Mapping[str, Any], widening: Mapping[str, float], scale: float = 1.0, errors: bool = True) -> str:
    unit = ", points" if scale == 100.0 else ""
    more = f" error{unit} | of the last value | median width{unit} |" if errors else ""
    lines = [f"| | pilot | trials | inside, bare | inside, widened | factor |{more}"]
    lines.append("|---|---|---:|---:|---:|---:|" + "---:|---:|---:|" * errors)
    for name, by in rows.items():
        for ahead, row in by.items():
            if not row:
                continue
            cells = [name if ahead == "3" else "", f"1/{ahead}", f"{row['trials']}"]
            cells += [f"{100 * row['coverage_bare']:.0f} %", f"{100 * row['coverage']:.0f} %", f"{widening[ahead]:g}"]
            if errors:
                numbers = (row["error"], row["error_of_last"], row["width"])
                cells += [f"{scale * value:.{1 if scale > 1 else 3}f}" for value in numbers]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _missed(row: Mapping[str, Any]) -> str:
    third = row["3"]
    if not third:
        return "No run of this kind had a pilot to extrapolate: they diverged."
    return (
        f"From a third, {100 * third['coverage']:.0f} % of {third['trials']} ends are inside, at a mean error of "
        f"{100 * third['error']:.1f} points; from a twelfth {100 * row['12']['coverage']:.0f} %."
    )


def _misses(cases: list[Mapping[str, Any]], factors: Mapping[str, float]) -> str:
    lines = ["| case | pilot | it ends at % | expected % | interval % | end % |", "|---|---|---:|---:|---:|---:|"]
    for case in cases:
        low, high = _interval(case, factors)
        numbers = f"{100 * case['pilot_end']:.1f} | {100 * case['value']:.1f} | {100 * low:.1f} to {100 * high:.1f}"
        lines.append(f"| {case['kind']}: {case['name']} | 1/{case['ahead']} | {numbers} | {100 * case['end']:.1f} |")
    return "\n".join(lines)
