"""`bench eval compare … --plot FILE.svg`: jobs as a figure, drawn by matplotlib (extra `plots`), imported when used.

Three panels: how rewards are distributed, pass@k over k, and cost against reward. Jobs differ by colour and by mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchflow.errors import UsageError
from benchflow.evaluation.summary import job_summary
from benchflow.files.atomic import write_atomic
from benchflow.record import Job

_FORMATS: Final = (".svg", ".png", ".pdf")
_MARKS: Final = "osD^vPX*"
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""Okabe and Ito's, which people with any colour vision can tell apart."""
_BINS: Final = 20


def write_plot(jobs: Sequence[tuple[str, Job]], path: Path) -> None:
    """Draw jobs into a file. A missing library, another format and a place that is not writable are wrong usage."""
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(f"--plot {path}: the name must end in {', '.join(_FORMATS)}.", code="plot-format")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        from cube.extras import extra_command

        raise UsageError(f"Plots need the extra 'plots': {extra_command('plots')}", code="extra-missing") from error
    import io

    settings: dict[Any, Any] = {"svg.hashsalt": "benchcube", "svg.fonttype": "none", "text.parse_math": False}
    with rc_context(settings):
        figure = Figure(figsize=(12.5, 4.2), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        summaries = [(_shown(name), job_summary(job)) for name, job in jobs]
        _rewards(left, summaries)
        _pass_at_k(middle, summaries)
        _costs(right, summaries)
        drawn = io.BytesIO()
        figure.savefig(drawn, format=path.suffix[1:].lower(), metadata=_metadata(path))
    try:
        write_atomic(path, drawn.getvalue())
    except OSError as error:
        raise UsageError(
            f"--plot {path} cannot be written: {error.strerror or error}.", code="plot-unwritable"
        ) from None


def _metadata(path: Path) -> dict[str, Any] | None:
    """Without the time, so that the same jobs give the same file."""
    return {"Date": None} if path.suffix.lower() == ".svg" else None


def _shown(name: str) -> str:
    """A name without characters that fonts and XML do not have; a leading underscore would hide it in a legend."""
    clean = "".join(character if character.isprintable() else "?" for character in name)
    return f" {clean}" if clean.startswith("_") else clean


def _style(index: int) -> tuple[str, str]:
    return _COLOURS[index % len(_COLOURS)], _MARKS[index % len(_MARKS)]


def _rewards(axes: Any, summaries: Sequence[tuple[str, Any]]) -> None:
    """A histogram of rewards as outlines, so that jobs do not cover each other."""
    axes.set_title("Rewards")
    axes.set_xlabel("reward")
    axes.set_ylabel("rollouts")
    rewards = [[r.reward for _, r in summary.counted if r.reward is not None] for _, summary in summaries]
    known = [value for values in rewards for value in values]
    low, high = min([0.0, *known]), max([1.0, *known])
    for index, ((name, summary), values) in enumerate(zip(summaries, rewards, strict=True)):
        unscored = summary.statistics.unscored
        label = f"{name} ({len(values)}{f', {unscored} unscored' if unscored else ''})"
        colour, _ = _style(index)
        filled = len(summaries) == 1
        kind = "stepfilled" if filled else "step"
        axes.hist(values, bins=_BINS, range=(low, high), histtype=kind, color=colour, label=label, linewidth=1.6)
    axes.legend(fontsize="small")


def _pass_at_k(axes: Any, summaries: Sequence[tuple[str, Any]]) -> None:
    axes.set_title("pass@k")
    axes.set_xlabel("k")
    axes.set_ylim(-0.02, 1.02)
    ticks: set[int] = set()
    for index, (_, summary) in enumerate(summaries):
        curve = [(int(k), e) for k, e in summary.statistics.pass_at_k.items() if e.value is not None]
        if not curve:
            continue
        colour, mark = _style(index)
        ks = [k for k, _ in curve]
        axes.plot(ks, [e.value for _, e in curve], color=colour, marker=mark)
        bounded = [(k, e) for k, e in curve if e.low is not None]
        if bounded:
            low, high = [e.low for _, e in bounded], [e.high for _, e in bounded]
            axes.fill_between([k for k, _ in bounded], low, high, color=colour, alpha=0.12, linewidth=0)
        ticks |= set(ks)
    if ticks:
        axes.set_xticks(sorted(ticks))


def _costs(axes: Any, summaries: Sequence[tuple[str, Any]]) -> None:
    axes.set_title("Cost against reward")
    axes.set_xlabel("cost of a rollout, US dollars")
    axes.set_ylabel("reward")
    drawn = False
    for index, (_, summary) in enumerate(summaries):
        points = [
            (r.usage["cost_usd"], r.reward)
            for _, r in summary.counted
            if r.reward is not None and "cost_usd" in r.usage
        ]
        if points:
            drawn = True
            colour, mark = _style(index)
            axes.scatter(*zip(*points, strict=True), s=22, color=colour, marker=mark, alpha=0.7)
    if not drawn:
        axes.text(0.5, 0.5, "no costs are recorded", ha="center", va="center", transform=axes.transAxes)
