"""What the running rollouts of a job do now, from its folder alone, so that any process can watch.

A rollout is running from its `config.json` until its `result.json`. Each look reads only what was appended since the
last one. A rollout that an interrupted run left unfinished is not running: its folder is older than the job's lock.
Rollouts on the nodes of a cluster have no folder here yet; what is known of them is in `nodes.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.record.job import Counted, JobResults
from benchflow.record.layout import JobPlaces, RolloutFolder
from benchflow.record.reading.trajectory_steps import add_usage, call_arguments, event_text, parsed_event, scan_events
from benchflow.record.summaries.job_nodes import JobNodes, LivePhase, LiveRollout, read_nodes
from benchflow.record.trajectory import tool_name

__all__ = ["LiveResults", "LiveRollout", "LiveRollouts", "WatchedRollout", "action_of"]

_MAX_CONFIG: Final = 8 << 20
_LONGEST: Final = 400
_ACTIONS: Final = frozenset({"tool_call", "agent_message", "agent_thought", "oracle", "verification", "user_message"})


class WatchedRollout:
    """One rollout between two looks."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = RolloutFolder(folder)
        self._config: Mapping[str, Any] | None = None
        self._offset = 0
        self._events = 0
        self._usage: dict[str, float] = {}
        self._last = ""
        self._kind = ""
        self._step: str | None = None

    def look(self) -> LiveRollout | None:
        """What it does now; None before it has begun."""
        if self._config is None:
            self._config = _config(self.folder.config)
        if self._config is None:
            return None
        try:
            self._catch_up()
        except OSError:  # it is gone, or cannot be read for now
            return None
        task = self._config.get("task")
        named = task.get("name") if isinstance(task, dict) else None
        attempt, agent, model, started = (self._config.get(key) for key in ("attempt", "agent", "model", "started_at"))
        return LiveRollout(
            self.folder.path.name,
            named if isinstance(named, str) else self.folder.path.name,
            attempt if isinstance(attempt, int) else 1,
            agent if isinstance(agent, str) else "",
            model if isinstance(model, str) else None,
            started if isinstance(started, str) else "",
            self._phase(),
            self._step,
            self._last,
            self._events,
            dict(self._usage),
        )

    def _phase(self) -> LivePhase:
        if self._kind == "verification":
            return "verify"
        return "agent" if self._events else "environment"

    def _catch_up(self) -> None:
        latest: bytes | None = None
        for line in scan_events(self.folder.trajectory, self._offset):
            self._offset = line.end
            self._events += 1
            self._kind = line.kind
            if line.kind == "usage":
                used = parsed_event(line.data)
                if used is not None:
                    add_usage(self._usage, used)
            elif line.kind in _ACTIONS:
                latest = line.data
        event = parsed_event(latest) if latest is not None else None
        if event is not None:
            self._step = event.get("step", self._step)
            self._last = action_of(event)


class LiveRollouts:
    """The running rollouts of one job, look by look."""

    def __init__(self, job: Path) -> None:
        self._places: Final = JobPlaces(job)
        self._watched: Final[dict[str, WatchedRollout]] = {}
        self._nodes: tuple[int, JobNodes | None] = (0, None)

    def look(self) -> tuple[LiveRollout, ...]:
        """The rollouts that run now, in the order they began."""
        names = set(self._unfinished())
        for gone in self._watched.keys() - names:
            del self._watched[gone]
        for name in names:
            self._watched.setdefault(name, WatchedRollout(self._places.rollout(name).path))
        found = (watched.look() for watched in self._watched.values())
        live = [rollout for rollout in found if rollout is not None]
        nodes = self.nodes()
        live += nodes.live if nodes is not None else ()
        return tuple(sorted(live, key=lambda rollout: (rollout.started_at, rollout.rollout)))

    def nodes(self) -> JobNodes | None:
        """The nodes of a job that runs on a cluster; None if it does not, or the file is of an earlier run."""
        try:
            since = self._places.lock.stat().st_mtime_ns
            written = self._places.nodes.stat().st_mtime_ns
        except OSError:
            return None
        if written < since:
            return None
        if written != self._nodes[0]:
            self._nodes = (written, read_nodes(self._places.nodes))
        return self._nodes[1]

    def _unfinished(self) -> Iterator[str]:
        try:
            since = self._places.lock.stat().st_mtime_ns
            folders = list(self._places.rollouts.iterdir())
        except OSError:
            return
        for folder in folders:
            place = RolloutFolder(folder)
            try:
                if not place.result.exists() and place.config.stat().st_mtime_ns >= since:
                    yield folder.name
            except OSError:
                continue


class LiveResults:
    """The results of a job that grows: each look reads only the lines that were added."""

    def __init__(self, job: Path) -> None:
        self._path: Final = JobPlaces(job).results
        self._offset = 0
        self._line = 0
        self.results: Final = JobResults()

    def look(self) -> list[Counted]:
        """The results that were added since the last look. Raises `OSError`."""
        try:
            stream = self._path.open("rb")
        except FileNotFoundError:
            return []
        added: list[Counted] = []
        with stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._line += 1
                counted = self.results.take(self._line, line)
                if counted is not None:
                    added.append(counted)
        return added


def action_of(event: Mapping[str, Any]) -> str:
    """What an event does, on one line and in few words."""
    match event["type"]:
        case "tool_call":
            title, given = event.get("title"), call_arguments(event)
            said = title if isinstance(title, str) and title else _arguments(given)
            name = tool_name(event)
            text = said if said.startswith(name) else f"{name} {said}"
        case "agent_message":
            text = f"says: {event_text(event)}"
        case "agent_thought":
            text = f"thinks: {event_text(event)}"
        case "user_message":
            text = f"was asked: {event_text(event)}"
        case "verification":
            text = "verification"
        case kind:
            text = f"{kind} {event_text(event)}"
    return " ".join(text[: 4 * _LONGEST].split())[:_LONGEST]


def _arguments(given: Any) -> str:
    """The arguments of a call; of one with a single text, that text."""
    if isinstance(given, dict):
        texts = [value for value in given.values() if isinstance(value, str)]
        if len(given) == 1 and texts:
            return texts[0]
        command = given.get("command")
        if isinstance(command, str):
            return command
    return "" if given is None else given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _config(path: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(read_regular(path, max_bytes=_MAX_CONFIG))
    except (OSError, RefusedFileError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
