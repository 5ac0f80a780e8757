"""A package as a scenario: its assessor as the green agent, its roles as participants, on fixed loopback ports."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchflow.errors import Issue, UsageError
from benchflow.files import copy_file, staged_folder, write_atomic
from benchflow.task.config.parsed_record import plain
from benchflow.task.filemap import scan
from benchflow.task.interop.export_report import (
    CompatibilityExportLoss,
    CompatibilityExportReport,
    ExportRefusedError,
)
from benchflow.task.interop.native_export import export_native
from benchflow.task.interop.scenarios.scenario_file import render_scenario
from benchflow.task.package import TaskPackage
from benchflow.task.verifier.declared_strategies import AssessorStrategy

TARGET: Final = "scenario"
FIRST_PORT: Final = 9009
PROGRAM: Final = "a2a:"
REPORT: Final = "compatibility/export-report.json"


def scenario_export_report(package: TaskPackage) -> CompatibilityExportReport:
    """What a scenario of the package would be and would lose. Raises `ExportRefusedError`."""
    strategy = _strategy(package)
    return CompatibilityExportReport(
        target=TARGET,
        source_task_dir=str(package.path.absolute()),
        selected_entrypoint=package.entrypoint or "",
        selected_prompt=None,
        selected_oracle_dir=None,
        selected_verifier_dir=package.verifier_dir,
        input_hashes=package.source_hashes,
        losses=tuple(_losses(package, strategy)),
    )


def export_scenario(package: TaskPackage, output: Path, *, overwrite: bool = False) -> CompatibilityExportReport:
    """Write `scenario.toml` and the programs it starts. Raises `UsageError`, `ExportRefusedError`."""
    strategy, report = _strategy(package), scenario_export_report(package)
    try:
        with staged_folder(output, overwrite=overwrite) as folder:
            if strategy.agent is not None:
                _copy_verifier(package, folder / "green_agent")
            else:
                export_native(package, folder / "package", above=folder)
            write_atomic(folder / "scenario.toml", _scenario(package, strategy))
            hashes = scan(folder).hashes()
            made = CompatibilityExportReport(
                **{**_fields(report), "emitted_files": tuple(hashes), "output_hashes": hashes}
            )
            (folder / REPORT).parent.mkdir()
            write_atomic(folder / REPORT, made.to_json())
    except FileExistsError as problem:
        raise UsageError(str(problem), code="output-exists") from None
    return made


def _fields(report: CompatibilityExportReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in CompatibilityExportReport.__dataclass_fields__}


def _strategy(package: TaskPackage) -> AssessorStrategy:
    document = package.verifier_document
    strategy = document.selected if document is not None else None
    if not isinstance(strategy, AssessorStrategy) or package.document is None or not _participants(package):
        message = "only an arena can be a scenario: it needs a strategy of type assessor, and participants"
        raise ExportRefusedError((Issue("export-refused", "error", "benchflow.interaction", message),))
    return strategy


def _participants(package: TaskPackage) -> tuple[str, ...]:
    interaction = package.document.namespace.interaction if package.document is not None else None
    return interaction.participants if interaction is not None else ()


def _agents(package: TaskPackage) -> Mapping[str, str | None]:
    roles = package.document.roles if package.document is not None else {}
    return {role: roles[role].agent if role in roles else None for role in _participants(package)}


def _copy_verifier(package: TaskPackage, target: Path) -> None:
    source = package.path / (package.verifier_dir or "verifier")
    for name in scan(source).files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        copy_file(source / name, target / name)


def _scenario(package: TaskPackage, strategy: AssessorStrategy) -> str:
    def place(index: int) -> tuple[str, str]:
        port = FIRST_PORT + index
        return f"http://127.0.0.1:{port}", f"--host 127.0.0.1 --port {port}"

    endpoint, options = place(0)
    green = {"endpoint": endpoint}
    if strategy.agent is None:
        green["cmd"] = f"bench serve a2a package {options} --no-token --path /"
    elif strategy.agent.startswith(PROGRAM):
        inner = f"cd green_agent && exec {strategy.agent.removeprefix(PROGRAM)} {options}"
        green["cmd"] = shlex.join(["sh", "-c", inner])
    participants = []
    for index, (role, agent) in enumerate(_agents(package).items(), 1):
        endpoint, options = place(index)
        entry = {"role": role, "endpoint": endpoint}
        if agent is not None and agent.startswith(PROGRAM):
            entry["cmd"] = f"{agent.removeprefix(PROGRAM)} {options}"
        participants.append(entry)
    config = {} if strategy.agent is None else _without_nulls(plain(strategy.config))
    if strategy.agent is None and "seed" in strategy.config:
        config = {"seed": strategy.config["seed"]}
    return render_scenario(green, participants, config)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value if item is not None] if isinstance(value, list) else value


def _losses(package: TaskPackage, strategy: AssessorStrategy) -> Iterator[CompatibilityExportLoss]:
    if strategy.agent is not None and not strategy.agent.startswith(PROGRAM):
        reason = f"a scenario starts programs, and the assessor is '{strategy.agent}': start it by yourself"
        yield CompatibilityExportLoss("verifier.strategies", reason, "refusal")
    for role, agent in _agents(package).items():
        where = f"agents.roles.{role}.agent"
        if agent is None or not agent.startswith(PROGRAM):
            yield CompatibilityExportLoss(where, f"a scenario starts programs; start an agent as '{role}' by yourself")
        else:
            yield CompatibilityExportLoss(
                where, f"the program of '{role}' is in the environment, which is not exported"
            )
    if strategy.agent is not None and _without_nulls(plain(strategy.config)) != plain(strategy.config):
        yield CompatibilityExportLoss("verifier.strategies", "TOML has no null: such values of config are left out")
    reasons = {
        "environment": "participants run on the machine itself, without sandboxes or network rules",
        "verifier": "the assessor runs on the machine itself, where participants can reach it and its files",
        "agent.timeout_sec": "a scenario has no time limits",
    }
    yield from (CompatibilityExportLoss(path, reason) for path, reason in reasons.items())
    for name in ("oracle", "evidence", "prompts"):
        if not any(file.startswith(f"{name}/") for file in package.files.files):
            continue
        if strategy.agent is not None:
            yield CompatibilityExportLoss(f"{name}/", "a scenario has no place for it", "warning")
        elif name != "prompts":
            reason = "it is exported with the package, where participants on the same machine can read it"
            yield CompatibilityExportLoss(f"{name}/", reason)
