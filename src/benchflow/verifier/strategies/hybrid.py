"""`hybrid`: a declared product or weighted sum of other strategies of the same verifier."""

from __future__ import annotations

from benchflow.rewards import FactorSpec, HybridPolicy, Unscored, Verdict
from benchflow.task.verifier.declared_strategies import HybridStrategy
from benchflow.verifier.strategy_run import Run


async def score(run: Run) -> Verdict:
    """Score every factor into its own folder, then combine; the first factor without a reward stops it."""
    strategy = run.strategy
    if not isinstance(strategy, HybridStrategy):
        raise TypeError(f"{run.name} is not a hybrid")
    weighted = strategy.combine == "weighted_sum"
    factors = tuple(
        FactorSpec(name, factor.strategy, factor.weight if weighted else None)
        for name, factor in strategy.factors.items()
    )
    policy = HybridPolicy("weighted_sum" if weighted else "product", factors)
    verdicts: dict[str, Verdict] = {}
    for factor in factors:
        verdicts[factor.name] = await run.again(factor.source, run.output / "factors" / factor.name, None)
        if isinstance(verdicts[factor.name], Unscored):
            break
    reason = Unscored("verifier", "verify", "not-reached", "an earlier factor has no reward")
    return policy.reward({factor.name: verdicts.get(factor.name, reason) for factor in factors}, run.scope.reward_range)
