"""How many examples Hypothesis draws."""

from hypothesis import settings


def drawn(examples: int) -> settings:
    """The same examples every time: as many as given, or with the profile "quick" of `make test` two fifths of them."""
    return settings(derandomize=True, deadline=None, max_examples=examples * settings().max_examples // 100)
