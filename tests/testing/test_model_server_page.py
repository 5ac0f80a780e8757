"""What the page about the model server shows is what happens."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from benchflow import testing
from benchflow.testing import ModelRequest

PAGE = (Path(__file__).parents[2] / "docs" / "model-server.md").read_text()


def test_every_reply_and_every_part_of_a_request_is_described() -> None:
    for name in ("Answer", "Fault", "Silence", "Disconnect", "Malformed"):
        described = re.search(rf"\| `{name}\((.*?)\)` \|", PAGE).group(1).split(", ")
        assert set(described) <= {field.name for field in fields(getattr(testing, name))}
    listed = set(re.findall(r"`(\w+)`", re.search(r"\| `requests` \| (.*) \|", PAGE).group(1)))
    properties = {name for name, value in vars(ModelRequest).items() if isinstance(value, property)}
    assert listed == {field.name for field in fields(ModelRequest)} | properties
