"""The `everfed` command."""

import atexit
import signal
import sys

from everfed.cli.stopping import leave
from everfed.studies.signals import heeding


def main() -> None:
    """The entry point; signals are heeded before PyTorch is imported."""
    try:
        with heeding(leave):
            if sys.argv[1:2] == ["devices"]:  # also on a small device, where PyTorch takes long or is not there
                from everfed.cli.devices import main as command
            else:
                from everfed.cli.app import main as command

            command()
    finally:
        atexit.register(_end_quietly)


def _end_quietly() -> None:
    """While Python shuts down, Ctrl-C ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
