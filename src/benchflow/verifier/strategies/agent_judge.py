"""`agent-judge`: a judge role examines declared evidence and gives one score.

Its prompt and its answer are kept as evidence and audited: neither the oracle nor hidden files may reach it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from benchflow.errors import Issue, JudgeFailure, PackageError
from benchflow.models import Reply
from benchflow.rewards import Scored
from benchflow.task.verifier.declared_strategies import AgentJudgeStrategy
from benchflow.verifier.inputs import Input, gather
from benchflow.verifier.judging.answers import overall_score, parse_answer
from benchflow.verifier.judging.deliverables import Deliverable
from benchflow.verifier.judging.judge_client import JudgeModel
from benchflow.verifier.judging.judge_prompts import role_messages
from benchflow.verifier.judging.transcript import Transcript
from benchflow.verifier.strategy_run import Run

MAX_CHARS: Final = 50_000
TRAJECTORY: Final = "judge-trajectory.jsonl"
AUDIT: Final = "judge-audit.json"


async def score(run: Run) -> Scored:
    """Gather the evidence, call the role once, audit prompt and answer."""
    strategy = run.strategy
    document = run.scope.document
    if not isinstance(strategy, AgentJudgeStrategy) or document is None:
        raise TypeError(f"{run.name} is not a judge role")
    role = document.role_prompts.get(strategy.role)
    if not role:
        message = f"verifier.md has no section '## role:{strategy.role}'."
        raise PackageError(message, code="unknown-role", file="verifier.md")
    evidence = [_shown(item) for item in await gather(run, strategy.inputs)]
    model = strategy.model or run.scope.config.judge.model
    variables = {**run.machine, **run.variables.values}
    judge = JudgeModel(model, variables, run.scope.config.timeout_sec, access=run.models)
    messages = role_messages(role, run.scope.prompt, evidence)
    with anyio.move_on_after(run.scope.config.timeout_sec) as limit:
        answer = await judge.ask(messages)
    if limit.cancelled_caught:
        raise JudgeFailure(f"The judge exceeded its limit of {run.scope.config.timeout_sec:g} s.", code="judge-timeout")
    transcript = Transcript(run.output / TRAJECTORY, run.variables.redact)
    transcript.add(model, messages, answer, role=strategy.role, inputs=[item.name for item in evidence])
    await anyio.to_thread.run_sync(_audit, run, evidence, answer)
    verdict = parse_answer(answer.text)
    return _scored(run, strategy, model, evidence, verdict, transcript)


def _shown(item: Input) -> Deliverable:
    text = item.data.decode("utf-8", "replace")
    return Deliverable(item.path, text[:MAX_CHARS], len(text) > MAX_CHARS)


def _scored(
    run: Run,
    strategy: AgentJudgeStrategy,
    model: str,
    evidence: list[Deliverable],
    verdict: dict[str, Any],
    transcript: Transcript,
) -> Scored:
    reward = overall_score(verdict)
    source = {"source": "agent-judge", "strategy": run.name, "role": strategy.role, "model": model}
    inputs = [{"path": item.name, "chars": len(item.text), "truncated": item.truncated} for item in evidence]
    return Scored(
        reward,
        document={"reward": reward, "metadata": source},
        details={
            **source,
            "inputs": inputs,
            "verdict": verdict,
            "aggregate": {"reward": reward, "method": "agent-judge-score"},
            "usage": transcript.usage,
        },
    )


def hidden_folders(run: Run) -> dict[str, Path]:
    """Files that neither agent nor judge may have seen, of the task and of all its steps, by name in the package."""
    view = run.scope.view
    steps = [folder for step in view.steps for folder in (step.verifier_dir, step.oracle_dir)]
    folders = dict.fromkeys(folder for folder in (view.verifier_dir, view.oracle_dir, *steps) if folder is not None)
    root = view.files.root.absolute()
    return {folder.relative_to(root).as_posix(): folder for folder in folders}


def _audit(run: Run, evidence: list[Deliverable], answer: Reply) -> None:
    """Record hidden text that appears in the evidence or the answer, and add a note."""
    texts = {**{f"input {item.name}": item.text for item in evidence}, "answer": answer.text}
    leaks = audit(texts, hidden_folders(run))
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
