"""What a model has used, and which limit that reaches."""

from __future__ import annotations

from collections.abc import Mapping

from benchflow.agents.protocol import AgentLimits, StopReason
from benchflow.errors import AgentFailure


class Budget:
    """Totals of one conversation, or of one turn of it. Values that were never reported are left out."""

    def __init__(self, model: str, limits: AgentLimits) -> None:
        self._model = model
        self._limits = limits
        self._totals: dict[str, float] = {}

    def add(self, usage: Mapping[str, float]) -> None:
        """Count one reply. A cost limit that cannot be checked is a failure; it must not be ignored."""
        if self._limits.max_cost_usd is not None and "cost_usd" not in usage:
            raise AgentFailure(
                f"The price of the model '{self._model}' is unknown, so its cost cannot be limited.",
                code="price-unknown",
            )
        for name, value in usage.items():
            self._totals[name] = self._totals.get(name, 0) + value
        self.count("steps")

    def count(self, name: str) -> None:
        self._totals[name] = self._totals.get(name, 0) + 1

    @property
    def totals(self) -> dict[str, float]:
        return dict(self._totals)

    def reached(self) -> StopReason | None:
        """The limit that was reached; None if there is none."""
        limits, used = self._limits, self._totals
        if limits.max_steps is not None and used.get("steps", 0) >= limits.max_steps:
            return "max_steps"
        tokens = used.get("input_tokens", 0) + used.get("output_tokens", 0)
        if limits.max_tokens is not None and tokens >= limits.max_tokens:
            return "max_tokens"
        if limits.max_cost_usd is not None and used.get("cost_usd", 0.0) >= limits.max_cost_usd:
            return "max_cost"
        return None
