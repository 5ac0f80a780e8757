"""The exchanges between a verifier and its judge, kept as evidence: one line each, without secrets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchflow.models import Reply


class Transcript:
    """An append-only file of exchanges, and their total cost."""

    def __init__(self, path: Path, redact: Callable[[str], str]) -> None:
        self.path = path
        self._redact = redact
        self._usage: dict[str, float] = {}
        self.exchanges = 0

    def add(self, model: str, messages: Sequence[dict[str, str]], answer: Reply, **extra: Any) -> None:
        """Record one prompt and its answer."""
        self.exchanges += 1
        for name, amount in answer.usage.items():
            self._usage[name] = self._usage.get(name, 0) + amount
        record = {
            "exchange": self.exchanges,
            "model": model,
            **extra,
            "messages": list(messages),
            "answer": answer.text,
        }
        record["usage"] = dict(answer.usage)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(self._redact(json.dumps(record, ensure_ascii=False)) + "\n")

    @property
    def usage(self) -> dict[str, float]:
        return dict(self._usage)
