"""A module name says what the module is, wherever it is read: it occurs once, or means the same each time."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import benchflow

SOURCE = Path(benchflow.__file__).parents[1]
TWICE = {
    "agents": "the command, and the driver of agents",
    "benchmark": "the gym layer's module and its implementation for packages",
    "client": "of a served gym task, and the thin one for trainers",
    "export": "a command of `bench tasks` and one of `bench eval`",
    "job": "the record of a job, and the job itself",
    "protocol": "the contract of the package it is in",
    "registry": "what is installed, by name: benchmarks, agents",
    "prove": "the command and what it does",
    "rescore": "the command and what it does",
    "run": "`bench run` and `bench eval run`",
    "task": "the gym layer's module and its implementation for packages",
    "terminal": "the terminal that commands print to, and the tool of an agent",
    "tool": "the gym layer's module and its implementation for packages",
}
"""Names that occur more than once, and why."""
MOST_MODULES = 15
LARGER = {
    "cube": "its modules are named by the specification of the gym layer",
    "benchflow/evidence/audit/families": "a catalogue: one module per kind of trick, none of which knows another",
}


def test_no_module_name_occurs_twice_without_a_reason() -> None:
    places = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        if not path.stem.startswith("__"):
            places[path.stem].append(path.relative_to(SOURCE).as_posix())
    repeated = {name: found for name, found in places.items() if len(found) > 1}
    assert set(repeated) <= set(TWICE), {name: found for name, found in repeated.items() if name not in TWICE}


def test_no_folder_has_more_modules_than_can_be_taken_in_at_once() -> None:
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    sizes = {
        folder.relative_to(SOURCE).as_posix(): sum(not path.stem.startswith("__") for path in folder.glob("*.py"))
        for folder in folders
    }
    assert {name: size for name, size in sizes.items() if size > MOST_MODULES and name not in LARGER} == {}
