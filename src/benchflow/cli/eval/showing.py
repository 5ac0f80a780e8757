"""`bench eval show`: the results of a job task by task, or single rollouts from their prompt to their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import click

from benchflow.cli.arguments import json_option
from benchflow.cli.eval.inspect import jobs_dir_option, readable
from benchflow.cli.rollouts.rollout_view import story_document, story_lines
from benchflow.cli.terminal import columns, emit, emit_json, note, page, printable
from benchflow.errors import UsageError, did_you_mean
from benchflow.evaluation.reports.job_report import summary_lines
from benchflow.evaluation.store import job_argument
from benchflow.evaluation.summary import job_summary
from benchflow.record import Counted, Job, RolloutFolder, labels
from benchflow.record.layout import is_folder_name
from benchflow.record.outcome import FULL
from benchflow.record.reading.rollout_story import RolloutStory, read_story


@click.command("show")
@click.argument("job")
@click.option("--rollout", metavar="NAME", help="Show this rollout; the beginning of its name is enough.")
@click.option("--task", metavar="NAME", help="Show the rollouts of this task; may contain * and ?.")
@click.option("--failed", is_flag=True, help="Show the rollouts that are unscored or have a reward below 1.")
@click.option("--last", is_flag=True, help="Show the rollout that finished last (of those selected).")
@click.option("--full", is_flag=True, help="Do not shorten any text of a rollout.")
@jobs_dir_option
@json_option
def show_command(
    job: str,
    rollout: str | None,
    task: str | None,
    failed: bool,
    last: bool,
    full: bool,
    jobs_dir: Path,
    as_json: bool,
) -> int:
    """Show the results of a job, or single rollouts.

    JOB is a name in the jobs folder, or the path of a job or of a rollout that `bench run` wrote. For a rollout, shows
    the prompt, the steps, the verifier's output and why the reward is not 1; on a terminal, in the pager.
    """
    alone = _single_rollout(jobs_dir, job)
    if alone is not None:
        _refuse_selection(alone, rollout=rollout, task=task, failed=failed, last=last)
        return _show_stories([read_story(alone)], None, full=full, as_json=as_json)
    found = readable(Job.find(jobs_dir, job))
    if found.torn:
        note(printable(f"The last line of {found.places.results} is incomplete and left out."))
    if rollout is None and task is None and not failed and not last:
        if full:
            raise UsageError("--full applies to rollouts; choose some with --rollout, --task, --failed or --last.")
        return _show_job(found, as_json=as_json)
    stories = _selected(found, rollout, task, failed=failed, last=last)
    return _show_stories(stories, found.folder.name, full=full, as_json=as_json)


def _show_job(job: Job, *, as_json: bool) -> int:
    summary = job_summary(job)
    if as_json:
        emit_json(summary.to_dict())
        return 0
    emit(printable(f"{summary.job}: {job.record.words()}"))
    for line in summary_lines(summary, job.places, width=columns()):
        emit(printable(line))
    missing = job.record.planned - len(summary.counted)
    named = job_argument(job.folder)
    if job.running:
        emit(printable(f"{max(missing, 0)} more planned; running now, to watch: bench eval watch {named}"))
    elif missing > 0:
        continuing = "" if job.record.upgraded else f"; to continue: bench eval resume {named}"
        emit(printable(f"{missing} more planned{continuing}"))
    if any((result.reward or 0.0) < FULL for _, result in summary.counted):
        emit(printable(f"to see why: bench eval show {named} --failed"))
    emit(f"\nresults are in {printable(str(job.folder))}")
    return 0


def _show_stories(stories: Sequence[RolloutStory], job: str | None, *, full: bool, as_json: bool) -> int:
    if as_json:
        named = {} if job is None else {"job": job}
        emit_json({**named, "rollouts": [story_document(story, whole=full) for story in stories]})
        return 0
    page(_all_lines(stories, full=full))
    return 0


def _all_lines(stories: Sequence[RolloutStory], *, full: bool) -> Iterator[str]:
    for number, story in enumerate(stories):
        if number:
            yield "\n" + "─" * min(columns() or 80, 80) + "\n"
        yield from story_lines(story, whole=full)


def _single_rollout(jobs_dir: Path, name: str) -> Path | None:
    """The folder of one rollout that is not part of a job, if the name is that of one."""
    folder = Path(name) if "/" in name else jobs_dir / name
    try:
        places = RolloutFolder(folder)
        is_one = places.result.is_file() or (places.config.is_file() and places.trajectory.exists())
        return folder if is_one and not Job(folder).places.job.exists() else None
    except (OSError, ValueError):
        return None


def _refuse_selection(folder: Path, **options: object) -> None:
    for name, value in options.items():
        if value:
            raise UsageError(f"{folder} is one rollout; --{name} applies to jobs.", code="not-a-job")


def _selected(job: Job, rollout: str | None, task: str | None, *, failed: bool, last: bool) -> list[RolloutStory]:
    """The stories of the rollouts that are asked for; none is wrong usage."""
    chosen = list(job.counted)
    if rollout is not None:
        named = _named(job, rollout)
        if isinstance(named, Path):
            return [read_story(named)]
        chosen = [named]
    if task is not None:
        chosen = _of_task(chosen, task)
    if failed:
        chosen = [counted for counted in chosen if (counted.result.reward or 0.0) < FULL]
    if last:
        chosen = [max(chosen, key=lambda counted: counted.result.finished_at)] if chosen else []
    if not chosen:
        what = "below a reward of 1" if failed else "selected"
        raise UsageError(f"Job '{job.folder.name}' has no rollouts {what}.", code="no-rollout")
    return [read_story(job.places.rollout(name).path, result) for name, result in chosen]


def _named(job: Job, name: str) -> Counted | Path:
    """The rollout of a name, or the only one whose name begins so; a folder where it is not among the results."""
    counted = {each.rollout: each for each in job.counted}
    if name in counted:
        return counted[name]
    folder = job.places.rollouts / name
    if is_folder_name(name) and folder.is_dir():
        return folder
    begin = [each for each in counted if each.startswith(name)]
    if len(begin) == 1:
        return counted[begin[0]]
    if begin:
        shown = ", ".join(begin[:5]) + (" …" if len(begin) > 5 else "")
        raise UsageError(f"{len(begin)} rollouts begin with '{name}': {shown}.", code="no-rollout")
    message = f"Job '{job.folder.name}' has no rollout '{name}'.{did_you_mean(name, counted)}"
    raise UsageError(message, code="no-rollout")


def _of_task(chosen: Sequence[Counted], pattern: str) -> list[Counted]:
    names = labels(result.task.id for _, result in chosen)
    found = [
        counted
        for counted in chosen
        if pattern in (names[counted.result.task.id], counted.result.task.name)
        or fnmatchcase(counted.result.task.name, pattern)
    ]
    if not found:
        known = sorted(set(names.values()))
        raise UsageError(f"The job has no task '{pattern}'.{did_you_mean(pattern, known)}", code="no-task")
    return found
