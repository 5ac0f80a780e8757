"""A scenario as a package: the green agent becomes an assessor in `verifier/`, each participant a role.

Programs that the commands name are copied: those of the green agent with their folder, because they may import what
lies beside them; those of participants alone, because what the assessor knows must not be in their box.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from benchflow.errors import UsageError
from benchflow.files import copy_file, staged_folder, write_atomic
from benchflow.task.filemap import scan
from benchflow.task.interop.export_report import CompatibilityExportLoss
from benchflow.task.interop.scenarios.scenario_file import Participant, Scenario, read_scenario, without_place

ASSESSOR: Final = "green_agent"
_PROMPT: Final = """\
You take part in an assessment with other agents. An assessor sends you messages and tells you what to do. Answer each
message.
"""
_BODY: Final = """The green agent of the scenario plays the game and gives the verdict.

## role:green_agent
Run the assessment as your program does it, and leave one artifact with the rewards of all participants.
"""


def import_scenario(source: Path, output: Path, name: str | None = None) -> tuple[CompatibilityExportLoss, ...]:
    """Write the package of a scenario file to a new or empty folder; returns what was lost. Raises `UsageError`."""
    scenario, warnings = read_scenario(source)
    losses = [CompatibilityExportLoss(issue.path, "a package has no place for it") for issue in warnings]
    task = name or f"scenarios/{re.sub(r'[^a-z0-9._-]+', '-', output.name.lower()).strip('-._') or 'scenario'}"
    try:
        with staged_folder(output) as folder:
            _write_programs(scenario, source.parent, folder, losses)
            _write_documents(scenario, task, folder, losses)
    except FileExistsError as error:
        raise UsageError(str(error), code="output-exists") from None
    return tuple(losses)


def _write_documents(scenario: Scenario, task: str, folder: Path, losses: list[CompatibilityExportLoss]) -> None:
    green, roles = scenario.green_agent, [each.role for each in scenario.participants]
    strategy: dict[str, Any] = {"type": "assessor", "role": ASSESSOR, "protocol": "a2a"}
    if green.cmd is not None:
        strategy["agent"] = f"a2a:{without_place(green.cmd)}"
    else:
        reason = "the scenario only says where the green agent runs; write its program as verifier.strategies.…agent"
        losses.append(CompatibilityExportLoss("green_agent.cmd", reason, "refusal"))
        strategy["agent"] = "a2a:false"
    if scenario.config:
        strategy["config"] = dict(scenario.config)
    _lose_endpoints(scenario, losses)
    front = {
        "schema_version": "1.3",
        "task": {"name": task, "description": f"A scenario for {', '.join(roles)}."},
        "environment": {"network_mode": "no-network", "workdir": "/app"},
        "agents": {
            "roles": {each.role: _role(each, index, losses) for index, each in enumerate(scenario.participants)}
        },
        "benchflow": {
            "document_version": "0.6",
            "interaction": {"mode": "arena-concurrent", "participants": roles},
            "prompt": {"composition": "append"},
        },
    }
    document = {
        "document_version": "0.3",
        "verifier": {
            "default_strategy": ASSESSOR,
            "strategies": {ASSESSOR: strategy},
            "rubric": {"dimensions": {"verdict": {"weight": 1.0, "source": ASSESSOR}}},
        },
    }
    write_atomic(folder / "task.md", _document(front, _PROMPT))
    write_atomic(folder / "verifier/verifier.md", _document(document, _BODY))


def _lose_endpoints(scenario: Scenario, losses: list[CompatibilityExportLoss]) -> None:
    named = [("green_agent", scenario.green_agent.endpoint)]
    named += [(f"participants[{index}]", each.endpoint) for index, each in enumerate(scenario.participants)]
    losses += [
        CompatibilityExportLoss(f"{where}.endpoint", f"{endpoint} is not kept: every game has its own ports", "warning")
        for where, endpoint in named
        if endpoint is not None
    ]


def _role(participant: Participant, index: int, losses: list[CompatibilityExportLoss]) -> dict[str, Any]:
    if participant.cmd is not None:
        return {"agent": f"a2a:{without_place(participant.cmd)}"}
    where, role = f"participants[{index}].cmd", participant.role
    reason = f"the scenario only says where '{role}' runs: nobody plays it, unless --participant {role}=AGENT|URL does"
    losses.append(CompatibilityExportLoss(where, reason))
    return {"agent": "nop"}


def _document(front: dict[str, Any], body: str) -> str:
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=120)}---\n{body}"


def _write_programs(scenario: Scenario, beside: Path, folder: Path, losses: list[CompatibilityExportLoss]) -> None:
    (folder / "verifier").mkdir()
    (folder / "environment").mkdir()
    copies = ""
    for index, each in enumerate(scenario.participants):
        found = _named_files(each.cmd, beside)
        _lose_missing(f"participants[{index}].cmd", each.cmd, found, losses)
        for name in found:
            _copy(beside / name, folder / "environment/participants" / name)
            copies = "COPY participants/ /app/\n"
    found = _named_files(scenario.green_agent.cmd, beside)
    _lose_missing("green_agent.cmd", scenario.green_agent.cmd, found, losses)
    for name in found:
        place = beside / PurePosixPath(name).parent
        wanted = scan(place).files if "/" in name else [PurePosixPath(name).name]
        for file in wanted:
            _copy(place / file, folder / "verifier" / PurePosixPath(name).parent / file)
    write_atomic(folder / "environment/Dockerfile", f"FROM python:3.12-slim\nWORKDIR /app\n{copies}")
    reason = "what the programs import is not known: install it in environment/Dockerfile"
    losses.append(CompatibilityExportLoss("environment/Dockerfile", reason))


def _named_files(command: str | None, beside: Path) -> list[str]:
    """The words of a command that are files of the scenario."""
    words = shlex.split(command) if command is not None else []
    inside = [word for word in words if word and not PurePosixPath(word).is_absolute() and ".." not in word.split("/")]
    return [PurePosixPath(word).as_posix() for word in inside if (beside / word).is_file()]


def _lose_missing(where: str, command: str | None, found: list[str], losses: list[CompatibilityExportLoss]) -> None:
    if command is not None and not found:
        reason = "no word of the command is a file beside the scenario: the program must be in the environment"
        losses.append(CompatibilityExportLoss(where, reason))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    copy_file(source, target)
