"""What all pages share: the jobs, the indexes of trajectories, and how a page is put together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final

from benchflow.record.reading.trajectory_steps import StepIndex, index_steps, is_current
from benchflow.view.known_jobs import KnownJobs
from benchflow.view.page_rendering import render

Crumbs = Sequence[tuple[str, str | None]]
"""Names from the top to the page, each with its address."""
SMALL: Final = 24 << 20
"""A trajectory up to this size is indexed at once; a larger one beside the pages that are read meanwhile."""
_MOST_INDEXES: Final = 256


@dataclass(frozen=True, slots=True)
class Live:
    """What a page that changes is watched by."""

    url: str
    version: str
    state: str


@dataclass(frozen=True, slots=True)
class Exported:
    """What stands in an exported file instead of the links to the viewer's own files."""

    style: str
    policy: str
    at: str
    """ISO 8601, UTC."""


class StepIndexes:
    """Where the pages of trajectories begin, as far as it is known by now."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, StepIndex] = OrderedDict()
        self._busy: set[Path] = set()
        self._lock = Lock()

    def of(self, path: Path) -> StepIndex | None:
        """The index of a trajectory: the current one, that of its earlier part, or None while it is made."""
        with self._lock:
            known = self._known.get(path)
        try:
            size = path.stat().st_size
        except OSError:
            return None
        if known is not None and is_current(known, path):
            return known
        if size <= SMALL:
            return self._make(path)
        with self._lock:
            if path not in self._busy:
                self._busy.add(path)
                Thread(target=self._make, args=(path,), daemon=True).start()
        return known if known is not None and known.size <= size else None

    def _make(self, path: Path) -> StepIndex | None:
        try:
            made = index_steps(path)
        except OSError:
            return None
        finally:
            with self._lock:
                self._busy.discard(path)
        with self._lock:
            self._known[path] = made
            while len(self._known) > _MOST_INDEXES:
                self._known.popitem(last=False)
        return made


class Viewer:
    """The viewer of a folder of jobs, of one job, or of a trajectory of another tool."""

    def __init__(
        self, jobs: KnownJobs, root: str, *, exported: Exported | None = None, trajectory: Path | None = None
    ) -> None:
        self.jobs: Final = jobs
        self.root: Final = root
        self.trajectory: Final = trajectory
        """The only thing to view, if it is a file."""
        self.exported: Final = exported
        self.indexes: Final = StepIndexes()

    def page(self, template: str, title: str, crumbs: Crumbs, *, live: Live | None = None, **values: Any) -> str:
        """A page as HTML."""
        return render(
            template,
            title=title,
            crumbs=crumbs,
            live=live,
            exported=self.exported,
            root=self.root,
            **values,
        )
