"""Deployment on Flower: the simulator's client-side scheduler on real devices, over a real network.

The public names are listed in __init__.pyi and loaded when they are first used: a device that is only asked
whether it takes part should not load what it needs for training.
"""

from importlib.util import find_spec

import lazy_loader

from everfed.errors import MissingExtraError

if find_spec("flwr") is None:  # not imported here: that takes half a second, which a device's check need not wait
    raise MissingExtraError("everfed.flower needs Flower; install it with: pip install 'everfed[flower]'.")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
