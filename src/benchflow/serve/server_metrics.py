"""Counts what a server does, as text for Prometheus: sessions, rollouts, and those without a score by category."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from benchflow.rewards import Scored, Verdict


@dataclass(slots=True)
class ServerMetrics:
    """The counters of one server."""

    open_sessions: int = 0
    sessions: int = 0
    reaped: int = 0
    refused_sessions: int = 0
    calls: int = 0
    refused_calls: int = 0
    scored: int = 0
    abandoned: int = 0
    """Sessions that ended before their episode did."""
    unscored: Counter[str] = field(default_factory=Counter)
    """By category."""
    reward_sum: float = 0.0

    def count(self, verdict: Verdict | None) -> None:
        """An episode that ended; None: its session did before it."""
        if verdict is None:
            self.abandoned += 1
        elif isinstance(verdict, Scored):
            self.scored += 1
            self.reward_sum += verdict.reward
        else:
            self.unscored[verdict.category] += 1

    def text(self) -> str:
        """The exposition format of Prometheus."""
        lines = [
            *_metric("sessions", "gauge", "Sessions that are open.", self.open_sessions),
            *_metric("sessions_total", "counter", "Sessions that were opened.", self.sessions),
            *_metric(
                "sessions_reaped_total", "counter", "Sessions that were closed because they were idle.", self.reaped
            ),
            *_metric("sessions_refused_total", "counter", "Sessions that were refused.", self.refused_sessions),
            *_metric("calls_total", "counter", "Calls of tools that were carried out.", self.calls),
            *_metric("calls_refused_total", "counter", "Calls of tools that were refused.", self.refused_calls),
            *_metric("rollouts_scored_total", "counter", "Episodes that ended with a reward.", self.scored),
            *_metric("rollouts_abandoned_total", "counter", "Sessions that ended before that.", self.abandoned),
            *_metric("rewards_sum", "gauge", "The sum of the rewards of scored episodes.", self.reward_sum),
            "# HELP benchcube_rollouts_unscored_total Episodes that ended without a reward, by category.",
            "# TYPE benchcube_rollouts_unscored_total counter",
            *(
                f'benchcube_rollouts_unscored_total{{category="{category}"}} {number}'
                for category, number in sorted(self.unscored.items())
            ),
        ]
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, meaning: str, value: float) -> tuple[str, str, str]:
    full = f"benchcube_{name}"
    return f"# HELP {full} {meaning}", f"# TYPE {full} {kind}", f"{full} {value:g}"
