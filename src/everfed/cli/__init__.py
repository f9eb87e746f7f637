"""The `everfed` command."""

from everfed.cli.app import main

__all__ = ["main"]
