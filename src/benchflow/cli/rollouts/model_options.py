"""Options on calls of models: limits of a rollout and of a job, token ids, and replays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from benchflow.cli.arguments import PATH, Command
from benchflow.errors import UsageError

if TYPE_CHECKING:
    from benchflow.models.gateway import CallLimits
    from benchflow.models.gateway.replay_book import ReplayBook

_COUNT: Final = click.IntRange(min=1)
_AMOUNT: Final = click.FloatRange(min=0, min_open=True)
_KEYS: Final = ("calls", "tokens", "cost_usd", "model_time")
_LIMITS: Final[tuple[tuple[str, str, Any, str, str], ...]] = (
    ("calls", "calls", _COUNT, "N", "number of model calls"),
    ("tokens", "tokens", _COUNT, "N", "number of tokens (input and output)"),
    ("cost", "cost_usd", _AMOUNT, "USD", "model cost in US dollars"),
    ("model-time", "model_time", _AMOUNT, "SEC", "total time in model calls"),
)


def call_limit_options(command: Command) -> Command:
    """`--max-calls`, `--max-tokens`, `--max-cost`, `--max-model-time`, `--token-ids`: of one rollout."""
    command = _limits(command, "", "per rollout.")
    text = "Request token ids and log-probabilities from OpenAI-compatible servers, and record them."
    return click.option("--token-ids", is_flag=True, help=text)(command)


def job_limit_options(command: Command) -> Command:
    """The same limits for all rollouts of a job together, and how many calls it makes at once."""
    command = _limits(command, "job", "for the whole job; after that, no new rollouts start.")
    return _concurrent(command, "in all rollouts together")


def served_limit_options(command: Command) -> Command:
    """The same for what the judges and users of served packages call: of one episode, and of the server.

    There `--max-calls` counts the calls of tools; those of models are `--max-model-calls`.
    """
    command = _concurrent(command, "by judges and users of all episodes together")
    whole = "for judges and users in all episodes; after that, new episodes are refused."
    command = _limits(command, "server", whole, calls="model-calls")
    return _limits(command, "", "per episode, separately for its judges and its user.", calls="model-calls")


def _limits(command: Command, scope: str, of: str, *, calls: str = "calls") -> Command:
    """One option for each kind of limit; its parameter is called after the option, with the unit of the value."""
    front = f"{scope}-" if scope else ""
    for name, key, kind, metavar, words in reversed(_LIMITS):
        option = f"--{front}max-{calls if name == 'calls' else name}"
        parameter = f"{front}max-{calls if key == 'calls' else key}".replace("-", "_")
        command = click.option(option, parameter, type=kind, metavar=metavar, help=f"Maximum {words} {of}")(command)
    return command


def _concurrent(command: Command, where: str) -> Command:
    text = f"Maximum number of concurrent model calls {where}; further calls wait."
    return click.option("--concurrent-calls", type=_COUNT, metavar="N", help=text)(command)


def replay_options(command: Command) -> Command:
    """`--replay JOB/ROLLOUT` and `--replay-mode`."""
    command = click.option(
        "--replay-mode",
        type=click.Choice(["strict", "loose"]),
        default="strict",
        show_default=True,
        help="strict: fail on a request that is not in the record; loose: answer in recorded order.",
    )(command)
    text = "Answer model calls from the record of another rollout; nothing is sent to a model."
    return click.option("--replay", type=PATH, metavar="JOB/ROLLOUT", help=text)(command)


def call_limits(options: Mapping[str, Any]) -> CallLimits | None:
    """The limits of a rollout; None if there are none."""
    limits = [options[f"max_{key}"] for key in _KEYS]
    if limits == [None] * len(limits):
        return None
    from benchflow.models.gateway import CallLimits

    return CallLimits(*limits)


def replay_book(rollout: Path | None, mode: str, jobs: Path) -> ReplayBook | None:
    """The calls of a rollout: a folder, or JOB/ROLLOUT below the folder of jobs; None if there is none to replay."""
    if rollout is None:
        return None
    from benchflow.models.gateway.replay_book import ReplayBook

    places = [rollout, jobs / rollout]
    if len(rollout.parts) == 2:
        places.append(jobs / rollout.parts[0] / "rollouts" / rollout.parts[1])
    found = next((place for place in places if (place / "model_calls.jsonl").is_file()), None)
    if found is None:
        folder = next((place for place in places if place.is_dir()), None)
        reason = "has no recorded model calls" if folder is not None else "does not exist"
        raise UsageError(f"--replay {rollout}: {folder or rollout} {reason}.", code="replay-missing")
    return ReplayBook.open(found, "loose" if mode == "loose" else "strict")
