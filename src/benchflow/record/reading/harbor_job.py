"""Jobs that Harbor wrote, as results of ours: for display only, nothing of them is changed.

A trial with rewards is scored, whatever else happened to it; one without is unscored with the name of its exception.
What Harbor does not record (isolation, the way an image was made) stays unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from benchflow.errors import Category
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.record.identity import WorkKey
from benchflow.record.job import Counted, DamagedLine
from benchflow.record.layout import is_folder_name
from benchflow.record.outcome import ErrorRecord, Outcome, PartOutcome, Score
from benchflow.record.result import AgentPart, Result, SandboxPart, StepRecord, TaskPart
from benchflow.rewards.numbers import finite
from benchflow.rewards.verdict import Phase

RESULT: Final = "result.json"
TRAJECTORY: Final = Path("agent", "trajectory.json")
_MAX_BYTES: Final = 16 << 20
_PHASES: Final[Mapping[str, Phase]] = {
    "environment_setup": "environment",
    "agent_setup": "agent",
    "agent_execution": "agent",
    "verifier": "verify",
}
_CATEGORIES: Final[tuple[tuple[str, Category], ...]] = (
    ("cancel", "cancelled"),
    ("verifier", "verifier"),
    ("reward", "verifier"),
    ("environment", "environment"),
    ("build", "environment"),
    ("agent", "agent"),
)


@dataclass(frozen=True, slots=True)
class HarborFacts:
    """What a job says of itself."""

    agent: str
    model: str
    planned: int
    started_at: str


@dataclass(frozen=True, slots=True)
class HarborResults:
    """The trials of a job."""

    counted: tuple[Counted, ...]
    damaged: tuple[DamagedLine, ...]
    """Trials whose result cannot be read, by their place in the order of names."""


def is_harbor_job(folder: Path) -> bool:
    """Whether a folder is laid out as a job of Harbor."""
    return (
        (folder / RESULT).is_file()
        and (folder / "config.json").is_file()
        and not (folder / "job.json").exists()
        and not (folder / "trajectory.jsonl").exists()
    )


class HarborJob:
    """One job folder of Harbor."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder

    def version(self) -> str:
        """Differs whenever a trial may have been added or finished."""
        try:
            job, own = (self.folder / RESULT).stat(), self.folder.stat()
            return f"{job.st_mtime_ns:x}-{job.st_size:x}-{own.st_mtime_ns:x}"
        except OSError:
            return "gone"

    @property
    def facts(self) -> HarborFacts:
        """As far as they are known."""
        job, config = _document(self.folder / RESULT), _document(self.folder / "config.json")
        agents = [agent for agent in config.get("agents") or [] if isinstance(agent, dict)] or self._locked_agents()
        names = [str(agent.get("name") or agent.get("import_path") or "") for agent in agents]
        models = [str(agent["model_name"]) for agent in agents if agent.get("model_name")]
        planned = job.get("n_total_trials")
        return HarborFacts(
            ", ".join(filter(None, names)),
            ", ".join(models),
            planned if isinstance(planned, int) else 0,
            str(job.get("started_at") or ""),
        )

    def _locked_agents(self) -> list[Mapping[str, Any]]:
        """The agents of the planned trials: a configuration has only what differs from the defaults."""
        trials = _document(self.folder / "lock.json").get("trials")
        agents = [_mapping(_mapping(trial).get("agent")) for trial in trials] if isinstance(trials, list) else []
        return list({(str(agent.get("name")), str(agent.get("model_name"))): agent for agent in agents}.values())

    def read(self) -> HarborResults:
        """All trials that have a result, in the order of their names."""
        counted, damaged = [], []
        attempts: Counter[tuple[str, str]] = Counter()
        for number, folder in enumerate(self.trials(), 1):
            try:
                document = _strict(folder / RESULT)
                task, agent = str(document.get("task_name") or folder.name), _agent(document)
                attempts[task, agent.name] += 1
                counted.append(Counted(folder.name, _result(document, task, agent, attempts[task, agent.name])))
            except (OSError, ValueError) as error:
                damaged.append(DamagedLine(number, f"{folder.name}: {error}"))
        return HarborResults(tuple(counted), tuple(damaged))

    def trials(self) -> Iterator[Path]:
        """The folders of trials that ended."""
        for folder in sorted(self.folder.iterdir()):
            if is_folder_name(folder.name) and not folder.is_symlink() and (folder / RESULT).is_file():
                yield folder


def harbor_result(folder: Path) -> Result:
    """The result of one trial. Raises `ValueError` and `OSError`."""
    document = _strict(folder / RESULT)
    return _result(document, str(document.get("task_name") or folder.name), _agent(document), 1)


def _result(document: Mapping[str, Any], task: str, agent: AgentPart, attempt: int) -> Result:
    config = _mapping(document.get("config"))
    used = _mapping(document.get("agent_result"))
    usage = {
        "input_tokens": finite(used.get("n_input_tokens")),
        "output_tokens": finite(used.get("n_output_tokens")),
        "cached_tokens": finite(used.get("n_cache_tokens")),
        "cost_usd": finite(used.get("cost_usd")),
    }
    checksum = document.get("task_checksum")
    return Result(
        task=TaskPart(task, str(_mapping(config.get("task")).get("path") or ""), None, checksum and str(checksum)),
        agent=agent,
        sandbox=SandboxPart(str(_mapping(config.get("environment")).get("type") or "docker"), None, None),
        attempt=attempt,
        outcome=_outcome(document),
        verifier=None,
        timing=_timing(document),
        usage={name: value for name, value in usage.items() if value is not None},
        steps=tuple(_steps(document.get("step_results"))),
        key=WorkKey(str(document.get("id") or document.get("trial_name") or "")),
        started_at=str(document.get("started_at") or ""),
        finished_at=str(document.get("finished_at") or ""),
    )


def _agent(document: Mapping[str, Any]) -> AgentPart:
    info = _mapping(document.get("agent_info"))
    model = _mapping(info.get("model_info")).get("name")
    exception = str(_mapping(document.get("exception_info")).get("exception_type") or "")
    return AgentPart(
        str(info.get("name") or "unknown"), str(model) if model else None, None, exception == "AgentTimeoutError"
    )


def _outcome(part: Mapping[str, Any]) -> Outcome:
    rewards = _mapping(_mapping(part.get("verifier_result")).get("rewards"))
    numbers = {name: number for name, value in rewards.items() if (number := finite(value)) is not None}
    if numbers:
        return Score(numbers.get("reward", next(iter(numbers.values()))), numbers)
    exception = _mapping(part.get("exception_info"))
    kind = str(exception.get("exception_type") or "no-reward")
    known: Category = "infrastructure"
    category = next((found for word, found in _CATEGORIES if word in kind.lower()), known)
    begun = [phase for name, phase in _PHASES.items() if _mapping(part.get(name)).get("started_at")]
    message = str(exception.get("exception_message") or "The trial has neither rewards nor an exception.")
    return ErrorRecord(category, kind, begun[-1] if begun else "plan", message)


def _steps(parts: Any) -> Iterator[StepRecord]:
    for number, part in enumerate(parts if isinstance(parts, list) else [], 1):
        if isinstance(part, dict):
            outcome: PartOutcome = _outcome(part)
            yield StepRecord(name=str(part.get("step_name") or part.get("name") or number), outcome=outcome)


def _timing(document: Mapping[str, Any]) -> dict[str, float]:
    found = {name: _span(_mapping(document.get(name))) for name in _PHASES}
    found["total"] = _span(document)
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def _span(part: Mapping[str, Any]) -> float | None:
    try:
        ends = [datetime.fromisoformat(str(part[name])) for name in ("started_at", "finished_at")]
        return max(0.0, (ends[1] - ends[0]).total_seconds())
    except (KeyError, ValueError, TypeError):
        return None


def _document(path: Path) -> Mapping[str, Any]:
    """A JSON object; an empty one if it cannot be read."""
    try:
        return _strict(path)
    except (OSError, ValueError):
        return {}


def _strict(path: Path) -> Mapping[str, Any]:
    try:
        document = parse_json(read_regular(path, max_bytes=_MAX_BYTES))
    except (RefusedFileError, StrictJSONError) as error:
        raise ValueError(f"{path.name} {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return document


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
