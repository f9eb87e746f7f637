"""Where energy comes from, is stored and is spent."""

from everfed.energy.arrivals import ARRIVALS, Arrivals, Lump, Trickle
from everfed.energy.battery import Battery, Books
from everfed.energy.fleet import Fleet

__all__ = ["ARRIVALS", "Arrivals", "Battery", "Books", "Fleet", "Lump", "Trickle"]
