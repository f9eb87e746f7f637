"""Forty devices live on harvested energy, and the labels they hold follow how much they harvest."""

import everfed as ef

# Ten devices each that harvest the energy of a training round every 1, 5, 10 and 20 rounds.
fleet = ef.Fleet.from_cycles([1, 5, 10, 20] * 10)

# What that does to training, before any training: is everybody heard?
for policy in (ef.Greedy(), ef.UniformWindow()):
    print(f"{policy}: {ef.audit(fleet, policy, rounds=200, seeds=50).verdict}")

# The digits, each energy group with classes of its own, so that a group left out is a class unknown.
data = ef.load("digits").partition(clients=40, how="by-energy", fleet=fleet, seed=0)

for method in ("greedy", "algorithm1"):
    print(method)
    run = ef.start("mlp", data, fleet, method, rounds=200, client=ef.SGD(0.1), eval_every=50, seed=0, device="cpu")
    for record in run:
        if record.metrics:
            m = record.metrics
            print(f"  round {record.round + 1}: accuracy {m.accuracy:.3f}, worst group {m.worst_group_accuracy:.3f}")
    print(f"  energy: {record.energy.spent:.0f} of {record.energy.harvested:.0f} units spent")
