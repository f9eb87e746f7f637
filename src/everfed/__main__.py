"""`python -m everfed` is the `everfed` command."""

import os
import sys

if __name__ == "__main__":
    # As for the command: a module in the current folder is imported only where it is named for it.
    sys.path[:] = [place for i, place in enumerate(sys.path) if i or place not in ("", os.getcwd())]

    from everfed.cli import main

    main()
