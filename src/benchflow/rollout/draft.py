"""A result in the making: what is known so far, which phase is under way, and the record that comes of it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, Final

from benchflow.files.atomic import write_atomic
from benchflow.files.redaction import NO_SECRETS, Redactor
from benchflow.rewards import Unscored, Verdict
from benchflow.rollout.config import RolloutConfig
from benchflow.rollout.record import ErrorRecord, Phase, Result
from benchflow.rollout.trajectory import timestamp

RESULT: Final = "result.json"
OnPhase = Callable[[str], None]
_JSON: Final = json.JSONEncoder(ensure_ascii=False)


class Draft:
    """Collects a result while a rollout runs."""

    def __init__(self, config: RolloutConfig, on_phase: OnPhase | None = None) -> None:
        path = config.task_path or str(getattr(config.task, "path", config.task))
        sandbox = config.sandbox if isinstance(config.sandbox, str) else config.sandbox.name
        self.started_at: Final = timestamp()
        self.phase: Phase = "plan"
        self.task: dict[str, Any] = {"name": Path(path).name or path, "path": path, "digest": None}
        self.agent: dict[str, Any] = {
            "name": config.agent,
            "model": config.model,
            "exit_code": None,
            "timed_out": False,
        }
        self.sandbox: dict[str, Any] = {
            "name": sandbox if sandbox != "auto" else None,
            "base": None,
            "fidelity": None,
        }
        self.verifier: dict[str, Any] | None = None
        self.usage: Counter[str] = Counter()
        self.extra: dict[str, Any] = {}
        self.redactor: Redactor = NO_SECRETS
        self._config = config
        self._timing: dict[str, float] = {}
        self._began = time.monotonic()
        self._on_phase = on_phase

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """The block is (part of) a phase."""
        self.phase = phase
        if self._on_phase is not None:
            self._on_phase(phase)
        began = time.monotonic()
        try:
            yield
        finally:
            self._timing[phase] = self._timing.get(phase, 0.0) + time.monotonic() - began

    def add_agent(self, record: Mapping[str, Any], usage: Mapping[str, float]) -> None:
        """What an agent of this rollout came to; the last exit code counts, and any timeout."""
        timed_out = self.agent["timed_out"] or record["timed_out"]
        self.agent |= {**record, "timed_out": timed_out}
        for name, value in usage.items():
            self.usage[name] += value  # type: ignore[assignment] # a Counter adds up any number

    def result(self, verdict: Verdict) -> Result:
        """The finished result, without anything secret."""
        clean = self.redactor.data
        record = verdict.record()
        error = None
        if isinstance(verdict, Unscored):
            error = ErrorRecord(verdict.category, verdict.code, verdict.phase, self.redactor.text(verdict.reason))
        timing = {**self._timing, "total": time.monotonic() - self._began}
        return Result(
            task=self.task,
            agent=clean(self.agent),
            sandbox=self.sandbox,
            attempt=self._config.attempt,
            key=self._config.content_key(self.task["digest"] or ""),
            status=verdict.status,
            reward=record["reward"],
            rewards=record["rewards"],
            error=error,
            verifier=clean(self.verifier) if self.verifier is not None else None,
            timing=timing,
            usage=dict(self.usage),
            extra=clean({name: value for name, value in self.extra.items() if value not in (None, [], {})}),
            started_at=self.started_at,
            finished_at=timestamp(),
        )


def write_document(path: Path, document: Mapping[str, Any], *, sync: bool = False) -> None:
    """A JSON document with one line per key, whole or not at all; its folder is made. Raises `OSError`."""
    encode = _JSON.encode
    lines = [f"  {encode_basestring(key)}: {encode(value)}" for key, value in document.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    try:
        write_atomic(path, text, sync=sync)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text, sync=sync)
