"""What the arguments of a function or the fields of a class mean, in the words of its source.

The house style has them in the docstring, one after the other:

    duration: rounds that it takes, where the fleet does not say.
    spread: relative standard deviation of the duration.

A field may also have a comment, behind it or in the lines above it.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from dataclasses import fields, is_dataclass
from typing import Any

_START = r"(?:^|(?<=[.;!?)] )|(?<=\n))"  # of a line, or of a sentence


def names_of(thing: Any) -> list[str]:
    """The arguments of a function, or the fields of a dataclass."""
    if inspect.isclass(thing) and is_dataclass(thing):
        return [field.name for field in fields(thing) if field.init]
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return []
    return [name for name in signature.parameters if name not in ("self", "cls", "args", "kwargs")]


def split(docstring: str, names: list[str]) -> tuple[str, dict[str, str]]:
    """(the docstring without the descriptions of these names, the descriptions).

    >>> split("Waits.\\n\\nlong: how long, s. at_most: the limit, s.\\n\\nMore.", ["long", "at_most"])
    ('Waits.\\n\\nMore.', {'long': 'how long, s.', 'at_most': 'the limit, s.'})
    """
    name = "(?:" + "|".join(sorted(names, key=len, reverse=True)) + ")" if names else r"(?!)"
    start = re.compile(rf"{_START}({name}(?:(?:, | and ){name})*): ")
    kept: list[str] = []
    found: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", docstring):
        starts = list(start.finditer(paragraph))
        if not starts or ">>>" in paragraph:
            kept.append(paragraph)
            continue
        if before := paragraph[: starts[0].start()].strip():
            kept.append(before)
        for this, following in zip(starts, [*starts[1:], None], strict=True):
            text = " ".join(paragraph[this.end() : following.start() if following else None].split())
            found |= dict.fromkeys(re.split(r", | and ", this[1]), text.rstrip(";"))
    return "\n\n".join(kept), found


def meanings(thing: Any) -> dict[str, str]:
    """The meaning of each argument or field, as far as the source tells; of base classes too.

    >>> from everfed.run.fleets import CycleFleet
    >>> meanings(CycleFleet)["capacity"]
    'battery in units; 0: as large as needed'
    """
    names = names_of(thing)
    if not inspect.isclass(thing):
        return split(inspect.getdoc(thing) or "", names)[1]
    found: dict[str, str] = {}
    for base in reversed(thing.__mro__):
        if base is not object:
            found |= _in_comments(base) | split(inspect.cleandoc(base.__doc__ or ""), names)[1]
    return {name: text for name, text in found.items() if name in names}


def _in_comments(cls: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
        (made,) = ast.parse(source).body
    except (OSError, TypeError, SyntaxError, ValueError):  # made by hand, or without a file
        return {}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    lines, found = source.splitlines(), {}
    for node in made.body if isinstance(made, ast.ClassDef) else ():
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        behind, above, line = comments.get(node.end_lineno or 0), list[str](), node.lineno - 1
        while line in comments and lines[line - 1].lstrip().startswith("#"):
            above.insert(0, comments[line])
            line -= 1
        if text := behind or " ".join(above):
            found[node.target.id] = text
    return found
