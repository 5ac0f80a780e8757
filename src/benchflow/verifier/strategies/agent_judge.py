"""`agent-judge`: a judge role examines declared evidence and gives one score.

Without an `agent` it is one call of a model; with one it works in a box of its own, with the verifier's files. What it
was shown and what it said are kept as evidence and audited: hidden files may not be part of the work, nor the oracle of
anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from benchflow.errors import Issue, JudgeFailure, PackageError
from benchflow.files.scratch import scratch
from benchflow.rewards import Scored
from benchflow.task.verifier.declared_strategies import AgentJudgeStrategy
from benchflow.verifier.inputs import Input, gather, gather_folders
from benchflow.verifier.judging.answers import overall_score, parse_verdict
from benchflow.verifier.judging.deliverables import Deliverable
from benchflow.verifier.judging.judge_client import JudgeModel, Room
from benchflow.verifier.judging.judge_prompts import judge_task, one_line, role_messages
from benchflow.verifier.judging.transcript import Transcript
from benchflow.verifier.scope import VERIFIER
from benchflow.verifier.strategy_run import Run

MAX_CHARS: Final = 50_000
TRAJECTORY: Final = "judge-trajectory.jsonl"
AUDIT: Final = "judge-audit.json"
EVIDENCE: Final = "evidence"
ROLLOUT: Final = "rollout"
_MAX_AUDITED: Final = 200
_MAX_SHOWN: Final = 500


async def score(run: Run) -> Scored:
    """Gather the evidence, let the role judge it, audit what it saw and said."""
    strategy = run.strategy
    document = run.scope.document
    if not isinstance(strategy, AgentJudgeStrategy) or document is None:
        raise TypeError(f"{run.name} is not a judge role")
    role = document.role_prompts.get(strategy.role)
    if not role:
        message = f"verifier.md has no section '## role:{strategy.role}'."
        raise PackageError(message, code="unknown-role", file="verifier.md")
    files = await gather(run, [path for path in strategy.inputs if not path.endswith("/")])
    if strategy.agent is not None:
        return await _judged_by_agent(run, strategy, role, files)
    return await _judged_by_model(run, strategy, role, files)


async def _judged_by_model(run: Run, strategy: AgentJudgeStrategy, role: str, files: list[Input]) -> Scored:
    """One call of the model, with the evidence in its prompt."""
    evidence = [_shown(item) for item in files]
    model = strategy.model or run.scope.config.judge.model
    variables = {**run.machine, **run.variables.values}
    judge = JudgeModel(model, variables, run.scope.config.timeout_sec, access=run.models)
    with anyio.move_on_after(run.scope.config.timeout_sec) as limit:
        messages, answer = await judge.ask_about(evidence, partial(role_messages, role, run.scope.prompt), Room())
    if limit.cancelled_caught:
        raise JudgeFailure(f"The judge exceeded its limit of {run.scope.config.timeout_sec:g} s.", code="judge-timeout")
    transcript = Transcript(run.output / TRAJECTORY, run.variables.redact)
    transcript.add(model, messages, answer, role=strategy.role, inputs=[item.name for item in evidence])
    hidden = hidden_folders(run)
    await anyio.to_thread.run_sync(_audit, run, evidence, hidden, {"answer": answer.text}, hidden)
    verdict = parse_verdict(answer.text)
    source = {"source": "agent-judge", "strategy": run.name, "role": strategy.role, "model": model}
    return _scored(source, evidence, verdict, transcript.usage)


async def _judged_by_agent(run: Run, strategy: AgentJudgeStrategy, role: str, files: list[Input]) -> Scored:
    """An agent in a box of its own, with the evidence as files."""
    from benchflow.verifier.judging.agent_as_judge import ask_agent
    from benchflow.verifier.judging.judge_box import WORKDIR

    with scratch("judge-") as folder:
        await anyio.to_thread.run_sync(_lay_out, files, folder)
        await gather_folders(run, [path for path in strategy.inputs if path.endswith("/")], folder / EVIDENCE)
        evidence, places = await anyio.to_thread.run_sync(_listed, folder)
        hidden = hidden_folders(run)
        context = run.scope.prompt
        shown = {f"{WORKDIR}/{place}": path for place, path in places.items()}
        prompt = judge_task(
            role, context, shown, workdir=WORKDIR, verifier=VERIFIER, verdict_file=strategy.verdict_file
        )
        trajectory = run.output / TRAJECTORY
        await anyio.to_thread.run_sync(_audit, run, evidence, hidden)
        judged = await ask_agent(run, strategy, prompt, folder, trajectory, {**run.machine, **run.variables.values})
    # It was given the verifier's own files and may quote them; the oracle's it must not know.
    oracles = {name: path for name, path in hidden.items() if path in _oracles(run)}
    await anyio.to_thread.run_sync(_audit, run, evidence, hidden, {"verdict": judged.said}, oracles)
    source = {"source": "agent-judge", "strategy": run.name, "role": strategy.role, "agent": strategy.agent}
    return _scored({**source, "model": strategy.model}, evidence, judged.verdict, judged.usage)


def _shown(item: Input) -> Deliverable:
    text = item.data.decode("utf-8", "replace")
    return Deliverable(item.path, text[:MAX_CHARS], len(text) > MAX_CHARS)


def _lay_out(files: list[Input], folder: Path) -> None:
    """The evidence as files: of the agent's box at its own path, of the rollout apart."""
    (folder / EVIDENCE).mkdir()
    for item in files:
        top = EVIDENCE if item.path.startswith("/") else ROLLOUT
        place = folder / top / item.path.strip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(item.data)


def _listed(folder: Path) -> tuple[list[Deliverable], dict[str, str]]:
    """The evidence as an audit reads it, and every file: its place in the folder, and its path as the agent knew it.

    Nothing of it can be run by its name any more.
    """
    found: list[Deliverable] = []
    places: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        path.chmod(0o444)
        place = path.relative_to(folder).as_posix()
        top, _, rest = place.partition("/")
        places[place] = one_line(f"/{rest}" if top == EVIDENCE else rest)
        if len(found) < _MAX_AUDITED:
            with path.open("rb") as stream:
                text = stream.read(_MAX_FILE).decode("utf-8", "replace")
            found.append(Deliverable(places[place], text, path.stat().st_size > _MAX_FILE))
    return found, dict(list(places.items())[:_MAX_SHOWN])


def _scored(
    source: dict[str, Any], evidence: list[Deliverable], verdict: Mapping[str, Any], usage: Mapping[str, float]
) -> Scored:
    reward = overall_score(verdict)
    inputs = [{"path": item.name, "chars": len(item.text), "truncated": item.truncated} for item in evidence]
    return Scored(
        reward,
        document={"reward": reward, "metadata": source},
        details={
            **source,
            "inputs": inputs,
            "verdict": dict(verdict),
            "aggregate": {"reward": reward, "method": "agent-judge-score"},
            "usage": dict(usage),
        },
    )


def hidden_folders(run: Run) -> dict[str, Path]:
    """Files that neither agent nor judge may have seen, of the task and of all its steps, by name in the package."""
    view = run.scope.view
    steps = [folder for step in view.steps for folder in (step.verifier_dir, step.oracle_dir)]
    folders = dict.fromkeys(folder for folder in (view.verifier_dir, view.oracle_dir, *steps) if folder is not None)
    root = view.files.root.absolute()
    return {folder.relative_to(root).as_posix(): folder for folder in folders}


def _oracles(run: Run) -> frozenset[Path]:
    view = run.scope.view
    return frozenset(folder for folder in (view.oracle_dir, *(step.oracle_dir for step in view.steps)) if folder)


def _audit(
    run: Run,
    evidence: list[Deliverable],
    hidden: Mapping[str, Path],
    said: Mapping[str, str] | None = None,
    unknown: Mapping[str, Path] | None = None,
) -> None:
    """Record hidden text that appears in the evidence, and text in what the judge said that it cannot know."""
    leaks = audit({f"input {item.name}": item.text for item in evidence}, hidden)
    leaks += audit(said or {}, unknown or {})
    record = {"leaks": [leak.to_dict() for leak in leaks], "clean": not leaks}
    (run.output / AUDIT).write_text(json.dumps(record, indent=2) + "\n")
    for leak in leaks[:10]:
        message = f"{leak.lines} lines of {leak.hidden} appear in the judge's {leak.found_in}, from line {leak.line}."
        run.findings.add(Issue("judge-leak", "warning", "", message, leak.hidden, leak.line))


_SHORTEST_LINE: Final = 24
"""Shorter lines appear everywhere."""
_MAX_FILE: Final = 1 << 20
_MAX_FILES: Final = 2_000
_MAX_LEAKS: Final = 50


@dataclass(frozen=True, slots=True)
class Leak:
    """Hidden text that appeared where it should not."""

    hidden: str
    found_in: str
    line: int
    """The first line of the hidden file that appears."""
    lines: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def audit(texts: Mapping[str, str], hidden: Mapping[str, Path]) -> list[Leak]:
    """Hidden files of which lines appear in the texts, each named by its key."""
    seen = {name: frozenset(line.strip() for line in text.splitlines()) for name, text in texts.items()}
    leaks: list[Leak] = []
    for label, path in hidden_files(hidden):
        lines = [(number, line.strip()) for number, line in enumerate(_lines(path), 1)]
        telling = [(number, line) for number, line in lines if len(line) >= _SHORTEST_LINE]
        for name, known in seen.items():
            matches = [number for number, line in telling if line in known or line in texts[name]]
            if matches and len(leaks) < _MAX_LEAKS:
                leaks.append(Leak(label, name, matches[0], len(matches)))
    return leaks


def hidden_files(roots: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """The regular files of hidden folders with display names."""
    count = 0
    for label, root in roots.items():
        for path in sorted(root.rglob("*")):
            if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_FILE:
                continue
            count += 1
            if count > _MAX_FILES:
                return
            yield f"{label}/{path.relative_to(root).as_posix()}", path


def _lines(path: Path) -> Iterable[str]:
    return path.read_bytes().decode("utf-8", "replace").splitlines()
