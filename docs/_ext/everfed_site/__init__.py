"""What the site reads off the source: keys, commands, docstrings, diagrams; and formulas as MathML."""

from sphinx.application import Sphinx

from everfed_site import commands, diagrams, docstrings, keys, kinds, links, mathml


def setup(app: Sphinx) -> dict[str, bool]:
    for part in (commands, diagrams, docstrings, keys, kinds, links, mathml):
        part.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
