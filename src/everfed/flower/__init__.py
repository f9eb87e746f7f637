"""Deployment on Flower: the simulator's client-side scheduler on real devices, over a real network.

The public names are listed in __init__.pyi and loaded when they are first used: a device that is only asked
whether it takes part should not load what it needs for training.
"""

import lazy_loader

from everfed.errors import MissingExtraError

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise MissingExtraError("everfed.flower needs Flower; install it with: pip install 'everfed[flower]'.") from error

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
