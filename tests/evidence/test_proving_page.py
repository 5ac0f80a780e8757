"""The page about proving lists codes that are reported."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "proving.md").read_text()
MADE = Path(__file__).parents[2] / "src" / "benchflow"


def test_every_code_of_the_page_is_reported():
    source = "\n".join(file.read_text() for file in (MADE / "evidence").glob("*.py"))
    for defined in ("task/document/evidence_block.py", "record/evidence.py"):
        source += (MADE / defined).read_text()
    table = PAGE.partition("## Codes")[2]
    codes = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert codes
    assert [code for code in codes if f'"{code}"' not in source] == []
