"""`bench tasks show`: what a package will run, with every prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchflow.cli.arguments import json_option, package_path, sandbox_option
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.tasks.rendering import counted, issue_lines
from benchflow.cli.tasks.selection import one_package
from benchflow.cli.terminal import emit, emit_json, printable, style

if TYPE_CHECKING:
    from benchflow.task.bundles.bundle_reading import Bundle
    from benchflow.task.document.prompt_plan import UserContract
    from benchflow.task.package import TaskPackage


@click.command()
@package_path
@sandbox_option
@json_option
def show(path: Path, sandbox: str | None, as_json: bool) -> int:
    """Show what a package will run, or what a bundle contains.

    With --json, prints the whole package as data, with its effective configuration but without private facts.
    """
    from benchflow.task.bundles.package_files import open_named
    from benchflow.task.checks import check_package, require_sandbox
    from benchflow.task.package import load_package

    require_sandbox(sandbox)
    bundle = open_named(path)
    if bundle is not None and len(bundle.index.packages) > 1:
        return _show_bundle(bundle, as_json=as_json)
    found = one_package(path)
    package = load_package(found.path, sandbox=sandbox)
    issues = check_package(package)
    valid = not any(issue.severity == "error" for issue in issues)
    if as_json:
        listed = [issue.to_dict() for issue in issues]
        shown = {**package.to_dict(), "isolation": isolation_of_steps(package)} if valid else _unusable(package)
        emit_json({**shown, "valid": valid, "issues": listed})
    else:
        if valid:
            emit("\n".join(_lines(package)))
        for line in issue_lines(issues, str(path), indent=""):
            emit(line)
    return GOOD if valid else FAILED


def _show_bundle(bundle: Bundle, *, as_json: bool) -> int:
    """The benchmark and its packages, all verified."""
    for entry in bundle.index.packages:
        bundle.verify(entry)
    benchmark = bundle.index.benchmark.to_dict()
    if as_json:
        listed = [{**entry._asdict(), "beside": list(entry.beside)} for entry in bundle.index.packages]
        emit_json({"path": str(bundle.path), "digest": bundle.digest, "benchmark": benchmark, "tasks": listed})
        return GOOD
    splits = benchmark.pop("splits")
    emit(style(printable(benchmark.pop("name") or str(bundle.path)), "bold"))
    rows = {"digest": bundle.digest, **benchmark, "packages": f"{len(bundle.index.packages):,}"}
    rows |= {f"split {name}": counted(len(paths), "package") for name, paths in splits.items()}
    width = max(map(len, rows))
    for label, value in rows.items():
        if value:
            emit(f"  {style(label.ljust(width), 'dim')}  {printable(value)}")
    for entry in bundle.index.packages:
        emit(printable(f"{bundle.path}:{entry.path}  ({entry.name})"))
    return GOOD


def _unusable(package: TaskPackage) -> dict[str, Any]:
    """The data of an invalid package."""
    config = package.config.to_dict() if package.config is not None else None
    return {
        "task_dir": str(package.path.absolute()),
        "name": package.name,
        "digest": package.digest,
        "content_digest": package.content_digest,
        "config": config,
    }


def isolation_of_steps(package: TaskPackage) -> list[dict[str, Any]]:
    """What the verifier of the task, or of each step, sees of the agent's changes: declared, and proven so far."""
    from benchflow.files.user_store import default_store
    from benchflow.record.proof import list_proofs

    proofs = list(list_proofs(default_store() / "proofs", package.content_digest))
    if proofs:
        from benchflow.record.proof import rules

        proofs = [proof for proof in proofs if proof.key.rules == rules()]
    whole = package.view.config.verifier.wanted_isolation
    steps = {step.config.name: step.config.verifier.wanted_isolation or whole for step in package.view.steps}
    return [
        {
            "step": step,
            "declared": declared,
            "proofs": [
                {
                    "rung": item.rung,
                    "proof": proof.digest,
                    "sandbox": proof.key.sandbox,
                    "environment": proof.key.environment,
                    "proven_at": proof.proven_at,
                }
                for proof in proofs
                for item in proof.steps
                if item.step == step
            ],
        }
        for step, declared in (*steps.items(), *([] if steps else [(None, whole)]))
    ]


def _isolation(part: dict[str, Any]) -> str:
    declared = part["declared"] or "shared (default)"
    proven = [
        f"{proof['rung']} proven on {proof['sandbox']} ({_short(proof['environment'])})" for proof in part["proofs"]
    ]
    if part["declared"] == "auto" and not proven:
        return "auto, not proven yet on this machine"
    return ", ".join([declared, *proven])


def _short(environment: str) -> str:
    """An environment in a few letters."""
    kind, _, digest = environment.partition(":")
    return kind if kind == "host" else f"{kind}:{digest[:12]}"


def _lines(package: TaskPackage) -> Iterator[str]:
    yield style(printable(package.name), "bold")
    rows = [(label, value) for label, value in _rows(package) if value]
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        yield f"  {style(label.ljust(width), 'dim')}  {printable(value)}"
    for who, prompt in _prompts(package):
        yield ""
        yield style(f"Prompt ({printable(who)})" if who else "Prompt", "bold")
        yield from (f"  {printable(line)}" for line in prompt.splitlines())


def _prompts(package: TaskPackage) -> Iterator[tuple[str, str]]:
    """Every prompt in order, with its scene and role, or its step."""
    for turn in package.prompt_plan.turns:
        if turn.prompt.strip():
            yield ", ".join(part for part in (turn.scene, turn.role) if part), turn.prompt
    for step in package.view.steps:
        yield f"step {step.config.name}", step.instruction or ""


def _team(contract: UserContract) -> str | None:
    """How the roles of a team work together."""
    if contract.handoff_kind == "none":
        return None
    mode, _, workspace = contract.handoff_kind.partition("-")
    handed = f"; hands over {', '.join(contract.handoff_artifacts)}" if contract.handoff_artifacts else ""
    place = "one workspace each" if workspace == "isolated" else "one workspace"
    return f"{contract.handoff_team}, {mode} in {place}{handed}"


def _rows(package: TaskPackage) -> Iterator[tuple[str, str | None]]:
    view = package.view
    environment, agent = view.config.environment, view.config.agent
    yield "digest", package.digest
    yield "folder", str(package.path)
    yield "definition", "task.md" if package.entrypoint == "task.md" else "task.toml and instruction.md"
    yield "interaction", view.mode
    interaction = view.namespace.interaction
    yield "participants", ", ".join(interaction.participants) if interaction else None
    yield "team", _team(view.prompt_plan.user_runtime)
    yield "steps", ", ".join(step.config.name for step in view.steps)
    yield ("environment", environment.docker_image or ("environment/" if view.environment_dir else "the machine's own"))
    yield "network", environment.network_mode
    cpus = f"{environment.cpus:g} {'CPU' if environment.cpus == 1 else 'CPUs'}"
    yield ("limits", f"{cpus}, {environment.memory_mb} MB memory, {environment.storage_mb} MB disk")
    yield "agent timeout", "none" if agent.timeout_sec is None else f"{agent.timeout_sec:g} s"
    document = package.verifier_document
    strategy = f"{document.default_strategy} ({view.strategy})" if document else view.strategy
    yield "verifier", f"{package.verifier_dir}/, {strategy}" if package.verifier_dir else None
    for part in isolation_of_steps(package):
        yield "isolation" + (f" of {part['step']}" if part["step"] else ""), _isolation(part)
    yield "oracle", f"{package.oracle_dir}/" if package.oracle_dir else "none"
    yield "profiles", ", ".join(f"{key}: {profile.path}" for key, profile in package.profiles.items())
    if package.sandbox is not None:
        yield f"on {package.sandbox}", "can run" if package.runtime_supported else "cannot run"
        for feature in package.runtime_issues:
            yield "", f"{feature.path}: {feature.reason}"
