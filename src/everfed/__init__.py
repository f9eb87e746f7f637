"""everfed: federated learning for devices that live on harvested energy.

>>> import everfed as ef
>>> fleet = ef.Fleet.from_cycles([1, 5, 10, 20] * 10)
>>> data = ef.load("digits").partition(clients=40, how="by-energy", fleet=fleet, seed=0)
>>> history = ef.simulate("mlp", data, fleet, method="algorithm1", rounds=20, client=ef.SGD(0.1))
>>> history.participations
270
"""

import lazy_loader

__version__ = "0.1.0"

# The public names are listed in __init__.pyi, and loaded when they are first used: most of them need
# PyTorch, which takes seconds to import.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
