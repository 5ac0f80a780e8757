"""The page on trust shows the table of look-ups that the code uses."""

from __future__ import annotations

from pathlib import Path

from benchflow.verifier.lookups import LOOKUPS

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"


def test_the_page_on_trust_shows_every_lookup_and_how_it_is_settled() -> None:
    rows = [f"| {row.program} | {row.finds} | {row.settled} | {row.how} |" for row in LOOKUPS]
    table = "\n".join(["| program | looks up | settled by | how |", "|---|---|---|---|", *rows])
    shown = PAGE.read_text().partition("<!-- look-ups -->\n")[2].partition("<!-- end of look-ups -->")[0]
    assert shown.strip() == table
