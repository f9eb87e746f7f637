"""The `everfed` command."""

import atexit
import os
import signal
import sys

from everfed.cli.stopping import leave
from everfed.studies.signals import heeding

VARIABLE = "_EVERFED_COMPLETE"  # set by the shell's script, which `everfed --install-completion` installs


def main() -> None:
    """The entry point; signals are heeded before PyTorch is imported."""
    try:
        with heeding(leave):
            if VARIABLE in os.environ:  # a shell completes a line: in a blink, so without PyTorch
                from everfed.cli.completion import complete

                raise SystemExit(complete(VARIABLE))
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
