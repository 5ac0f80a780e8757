"""`llm-judge`: a model scores the agent's deliverables, criterion by criterion."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from benchflow.errors import EnvironmentFailure, JudgeFailure, PackageError, SandboxFailure
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.rewards import Criterion, RewardItem, Rubric, Scored, load_rubric
from benchflow.sandbox.protocol import OF_THE_FILE
from benchflow.task.verifier.declared_strategies import LLMJudgeStrategy
from benchflow.verifier.boxes import Box, timed_out
from benchflow.verifier.inputs import NotDelivered, Undelivered
from benchflow.verifier.judging.answers import parse_answer
from benchflow.verifier.judging.deliverables import FOLDERS, MAX_FILE_BYTES, Deliverable, matching, read_deliverables
from benchflow.verifier.judging.judge_client import JudgeModel, Room
from benchflow.verifier.judging.judge_prompts import criterion_messages
from benchflow.verifier.judging.transcript import Transcript
from benchflow.verifier.strategy_run import Run

DELIVERABLES: Final = "deliverables"
MAX_BYTES: Final = 256 << 20
MAX_FILES: Final = 500
_MAX_CONTEXT: Final = 1 << 20
_NO_FOLDER: Final = 44
_LIST: Final = (
    f'[ -d "$1" ] || exit {_NO_FOLDER}\n'
    """for d do for f in "$d"/*; do if [ -f "$f" ] && [ ! -L "$f" ]; then printf '%s\\0' "$f"; fi; done; done"""
)
"""Uses no program of the environment except its shell."""
_OPTIONS: Final = frozenset({"samples", "reasoning_effort"})
_MOST_SAMPLES: Final = 15


async def score(run: Run) -> Scored:
    """Fetch the deliverables, have every criterion judged, combine by the rubric's policy."""
    strategy = run.strategy
    if not isinstance(strategy, LLMJudgeStrategy):
        raise TypeError(f"{run.name} is not a judge")
    rubric = _rubric(run, strategy.rubric)
    options = _options(rubric)
    model = strategy.model or rubric.judge.model or run.scope.config.judge.model
    variables = {**run.machine, **run.variables.values}
    judge = JudgeModel(model, variables, rubric.judge.timeout_sec, options["reasoning_effort"], run.models)
    folder = run.output / DELIVERABLES
    source = strategy.input_dir or run.sandbox.spec.workdir
    if not await fetch(run, source, folder):
        raise _nothing(rubric, source, f"The folder to judge, {source}, does not exist.")
    files = matching(await read_deliverables(folder), rubric.judge.files)
    if not files:
        raise _nothing(rubric, source, _nothing_in(source, rubric.judge.files))
    transcript = Transcript(run.output / "judge.jsonl", run.variables.redact)
    with anyio.move_on_after(run.scope.config.timeout_sec) as limit:
        items = await _items(judge, rubric, _context(run, strategy), files, options["samples"], transcript)
        return _scored(run, rubric, model, items, transcript)
    assert limit.cancelled_caught  # noqa: S101 - the block returns otherwise
    raise JudgeFailure(f"The judge exceeded its limit of {run.scope.config.timeout_sec:g} s.", code="judge-timeout")


def _nothing(rubric: Rubric, path: str, reason: str) -> NotDelivered:
    """A folder without readable files counts as nothing delivered: no judge is called."""
    return NotDelivered([Undelivered(path, reason)], [item.id for item in rubric.criteria])


def _nothing_in(source: str, wanted: tuple[str, ...]) -> str:
    named = f" among {', '.join(wanted)}" if wanted else ""
    return f"{source} contains no file{named} that a judge can read."


async def fetch(run: Run, source: str, target: Path) -> bool:
    """Copy the plain files of a folder that the agent worked in, and of its output folders, as the verifier sees them.

    False if there is no such folder. Files too large for a judge are left out, so that an agent cannot prevent
    being judged by leaving too much.
    """
    await anyio.Path(target).mkdir()
    left = MAX_BYTES
    async with run.box() as box:
        listed = await _listed(run, box, source)
        if listed is None:
            return False
        for name in listed[:MAX_FILES]:
            try:
                data = await box.sandbox.read_file(name, max_bytes=min(left, MAX_FILE_BYTES))
            except SandboxFailure as error:
                if error.code not in OF_THE_FILE:
                    raise
                continue
            left -= len(data)
            place = target / name.removeprefix(source).lstrip("/")
            await anyio.Path(place.parent).mkdir(parents=True, exist_ok=True)
            await anyio.Path(place).write_bytes(data)
    return True


async def _listed(run: Run, box: Box, source: str) -> list[str] | None:
    """The plain files of a folder and its output folders by path, hidden ones left out; None without the folder.

    It needs only the environment's shell; if that fails, it is an `EnvironmentFailure`.
    """
    places = [source, *(f"{source}/{folder}" for folder in FOLDERS if folder)]
    timeout = run.scope.config.timeout_sec
    result = await box.sandbox.exec(["/bin/sh", "-c", _LIST, "sh", *places], user="root", cwd="/", timeout=timeout)
    if result.timed_out:
        raise timed_out(timeout)
    if result.exit_code == _NO_FOLDER:
        return None
    if not result.ok:
        words = result.stderr.decode(errors="replace").strip() or f"exit code {result.exit_code}"
        raise EnvironmentFailure(f"The files in {source} cannot be listed: {words[-400:]}", code="listing-failed")
    return sorted(filter(None, result.stdout.decode(errors="surrogateescape").split("\0")))


async def _items(
    judge: JudgeModel, rubric: Rubric, context: str, files: list[Deliverable], samples: int, transcript: Transcript
) -> dict[str, RewardItem]:
    room = Room()
    if rubric.judge.mode == "batched" and len(rubric.criteria) > 1:
        answers = [await _ask(judge, rubric.criteria, context, files, room, transcript) for _ in range(samples)]
        return {item.id: _median(item, [_named(answer, item) for answer in answers]) for item in rubric.criteria}
    graded = {}
    for item in rubric.criteria:
        seen = matching(files, item.files)
        if not seen:
            reason = f"None of {', '.join(item.files)} was delivered in a form that a judge can read."
            graded[item.id] = RewardItem(item.id, 0.0, item.space, reason)
            continue
        answers = [await _ask(judge, (item,), context, seen, room, transcript) for _ in range(samples)]
        graded[item.id] = _median(item, answers)
    return graded


async def _ask(
    judge: JudgeModel,
    criteria: tuple[Criterion, ...],
    context: str,
    files: list[Deliverable],
    room: Room,
    transcript: Transcript,
) -> dict[str, Any]:
    messages, answer = await judge.ask_about(files, partial(criterion_messages, criteria, context), room)
    transcript.add(judge.model, messages, answer, criteria=[item.id for item in criteria])
    return parse_answer(answer.text)


def _named(answer: dict[str, Any], item: Criterion) -> dict[str, Any]:
    found = answer.get(item.id)
    if found is None:
        raise JudgeFailure(f"The judge said nothing about {item.id!r}.", code="judge-answer-invalid", path=item.id)
    return found if isinstance(found, dict) else {"score": found}


def _median(item: Criterion, answers: list[dict[str, Any]]) -> RewardItem:
    """The median of the graded answers; of an even number the lower one."""
    graded = [_grade(item, answer) for answer in answers]
    middle = statistics.median_low([one.score for one in graded])
    return next(one for one in graded if one.score == middle)


def _grade(item: Criterion, answer: dict[str, Any]) -> RewardItem:
    for key in ("score", "answer", "verdict", item.id):
        if key in answer:
            reason = answer.get("reason", answer.get("reasoning"))
            return item.grade(answer[key], reason if isinstance(reason, str) else None)
    raise JudgeFailure(f"The judge gave no score for {item.id!r}.", code="judge-answer-invalid", path=item.id)


def _scored(run: Run, rubric: Rubric, model: str, items: dict[str, RewardItem], transcript: Transcript) -> Scored:
    reward = rubric.combine(items)
    criteria = [
        {
            "name": item.name,
            "description": criterion.description,
            "weight": criterion.weight,
            "score": item.score,
            "raw": item.raw,
            "clamped": item.clamped,
            "reason": item.reason,
        }
        for criterion, item in ((criterion, items[criterion.id]) for criterion in rubric.criteria)
    ]
    aggregate = {"reward": reward, "method": rubric.policy.effective_method}
    source = {"source": "llm-judge", "strategy": run.name, "model": model}
    return Scored(
        reward,
        metrics={name: item.score for name, item in items.items()},
        items=tuple(items.values()),
        details={**source, "criteria": criteria, "aggregate": aggregate, "usage": transcript.usage},
    )


def _rubric(run: Run, path: str) -> Rubric:
    """In the verifier folder; without a verifier document the path is relative to the package."""
    found = run.scope.file(path)
    if found is None and run.scope.document is None:
        candidate = run.scope.view.files.root / path
        found = candidate if candidate.is_file() else None
    if found is None:
        raise PackageError(f"The rubric {path} does not exist.", code="missing-rubric", file=path)
    return load_rubric(found, file=path)


def _options(rubric: Rubric) -> dict[str, Any]:
    """The judge's settings beyond the common ones; unsupported settings are refused."""
    options = rubric.judge.options
    for key in options:
        if key not in _OPTIONS:
            message = f"judge.{key} is not supported; supported: {', '.join(sorted(_OPTIONS))}."
            raise PackageError(message, code="invalid-rubric", path=f"judge.{key}")
    samples = options.get("samples", 1)
    if not isinstance(samples, int) or not 1 <= samples <= _MOST_SAMPLES:
        raise PackageError(
            f"judge.samples must be from 1 to {_MOST_SAMPLES}.", code="invalid-rubric", path="judge.samples"
        )
    return {"samples": samples, "reasoning_effort": options.get("reasoning_effort")}


def _context(run: Run, strategy: LLMJudgeStrategy) -> str:
    if strategy.context_file is not None:
        file = run.scope.file(strategy.context_file)
        if file is None:
            message = f"The context file {strategy.context_file} does not exist."
            raise PackageError(message, code="missing-context", file=strategy.context_file)
        try:
            return read_regular(file, max_bytes=_MAX_CONTEXT).decode("utf-8", "replace")
        except RefusedFileError as error:
            message = f"{strategy.context_file} {error}."
            raise PackageError(message, code="missing-context", file=strategy.context_file) from error
    return strategy.context or run.scope.config.judge.context or run.scope.prompt
