"""`python -m everfed` is the `everfed` command."""

from everfed.cli import main

if __name__ == "__main__":
    main()
