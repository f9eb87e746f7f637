"""Where energy comes from, is stored and is spent."""

from everfed.energy.arrivals import ARRIVALS, Arrivals, Lump, Trickle
from everfed.energy.battery import Battery, Books, Storage
from everfed.energy.changing import Changing
from everfed.energy.fleet import Fleet
from everfed.energy.random_arrivals import BernoulliArrivals, Markov, UniformInBlock

__all__ = [
    "ARRIVALS",
    "Arrivals",
    "Battery",
    "BernoulliArrivals",
    "Books",
    "Changing",
    "Fleet",
    "Lump",
    "Markov",
    "Storage",
    "Trickle",
    "UniformInBlock",
]
