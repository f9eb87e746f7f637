"""Formulas as MathML, which browsers draw themselves: docutils knows how, and nothing has to be fetched."""

import re

from docutils import nodes
from docutils.utils.math import toplevel_code
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number

# What docutils spells differently.
_SPELLINGS = ((r"\\(big|Big)(?=\W|\\)", r"\\\1l"), (r"\\dots\b", r"\\ldots"), (r"\\texttt\b", r"\\mathtt"))


def mathml(tex: str, *, block: bool = False) -> str:
    """A formula of LaTeX as MathML.

    >>> mathml("E_i").count("<mi>")
    2
    """
    for theirs, ours in _SPELLINGS:
        tex = re.sub(theirs, ours, tex)
    if block:
        begin, end = f"\\begin{{{toplevel_code(tex)}}}", f"\\end{{{toplevel_code(tex)}}}"
        tex = f"{begin}{tex}{end}" if "align" in begin else tex
    return str(tex2mathml(tex, as_block=block))


def inline(translator, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def display(translator, node: nodes.math_block) -> None:
    number = ""
    if node["number"]:
        number = f'<span class="eqno">({get_node_equation_number(translator, node)})</span>'
    translator.body.append(f'<div class="math-block">{number}{mathml(node.astext(), block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
