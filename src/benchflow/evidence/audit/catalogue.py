"""The catalogue of families for the documentation: `python -m benchflow.evidence.audit.catalogue docs/auditing.md`.

The part of a page between two marks is written anew from the built-in families; everything else stays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Final, cast

from benchflow.evidence.audit.exploit_family import Family
from benchflow.plugins import FAMILIES

START: Final = "<!-- families: start -->\n"
END: Final = "<!-- families: end -->\n"


def render_catalogue() -> str:
    """A table for each kind of trick, headed by the first line of its module."""
    return "\n".join(_lines()) + "\n"


def with_catalogue(page: str) -> str:
    """The page with the present catalogue between its marks."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}{render_catalogue()}{END}{after}"


def _lines() -> Iterator[str]:
    for module, group in groupby(FAMILIES.built_in.items(), key=lambda item: item[1].partition(":")[0]):
        heading = (import_module(module).__doc__ or "").partition("\n")[0]
        yield from ("", heading, "", "| family | what it tries | remedy |", "|---|---|---|")
        for name, _ in group:
            family = cast("Family", FAMILIES.load(name))
            cells = (f"`{name}`", *(text.replace("|", "\\|") for text in (family.title, family.remedy)))
            yield f"| {' | '.join(cells)} |"
    yield ""


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_catalogue(target.read_text(encoding="utf-8")), encoding="utf-8")
