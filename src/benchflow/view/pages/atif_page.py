"""A single trajectory in ATIF, as a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchflow.record.reading.atif_events import read_atif
from benchflow.record.reading.trajectory_steps import steps_of
from benchflow.view.conversation_pages import SHOWABLE, Asked, arguments_text, page_of_steps, place_of
from benchflow.view.known_jobs import Missing
from benchflow.view.page_addresses import Fields, address
from benchflow.view.pages.rollout_page import FOLDED
from benchflow.view.viewer import Viewer


def atif_page(viewer: Viewer, path: Path, fields: Fields) -> str:
    """The conversation of a file."""
    try:
        document = read_atif(path)
    except (OSError, ValueError) as error:
        raise Missing("The trajectory cannot be read.", str(error)) from error
    asked = Asked.of(fields)

    def url(**changes: Any) -> str:
        return address("", **{**asked.fields(), **changes})

    return viewer.page(
        "atif.html",
        document.session,
        [(path.name, None)],
        document=document,
        conversation=page_of_steps(steps_of(document.events), asked),
        asked=asked,
        showable=SHOWABLE,
        url=url,
        part_url=lambda step, part, what: address("part", at=f"0-{step.number}", part=part, what=what),
        arguments_text=arguments_text,
        folded=FOLDED,
    )


def atif_part_page(viewer: Viewer, path: Path, fields: Fields) -> str:
    """One text of a step, whole."""
    _, number = place_of(fields.one("at"))
    try:
        steps = list(steps_of(read_atif(path).events))
        part = steps[number - 1].parts[fields.number("part", 0)]
    except (OSError, ValueError, IndexError) as error:
        raise Missing("This part of the trajectory does not exist.") from error
    texts = {"output": part.output or "", "arguments": arguments_text(part.arguments)}
    text = texts.get(fields.one("what"), part.text)
    return viewer.page("part.html", f"Step {number}", [(path.name, "/"), (f"Step {number}", None)], text=text)
