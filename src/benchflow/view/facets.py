"""Choosing rows of a job: facets, text, order. Pure: rows and a query in, the chosen rows and counts out.

The count beside a value is how many rows there would be with it, whatever else is chosen in the same facet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchflow.view.job_index import Row, Rows
from benchflow.view.page_addresses import Fields

FACETS: Final[Mapping[str, Callable[[Row], str]]] = {
    "status": lambda row: "unscored" if row.reward is None else "scored",
    "reward": lambda row: row.outcome,
    "category": lambda row: row.category,
    "agent": lambda row: f"{row.agent} · {row.model}" if row.model else row.agent,
    "rung": lambda row: row.rung,
    "task": lambda row: row.task.name,
}
TITLES: Final = {
    "status": "Status",
    "reward": "Reward",
    "category": "What failed",
    "agent": "Agent",
    "rung": "Isolation",
    "task": "Task",
}
SORTS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "task": lambda row: (row.task.name, row.attempt),
    "reward": lambda row: row.reward,
    "attempt": lambda row: (row.attempt, row.task.name),
    "agent": FACETS["agent"],
    "rung": lambda row: row.rung,
    "time": lambda row: row.seconds,
    "cost": lambda row: row.cost,
    "started": lambda row: row.started_at,
}
MOST_VALUES: Final = 40
"""So many values of a facet are listed; the rest is reached by searching."""


@dataclass(frozen=True, slots=True)
class Query:
    """What was asked for; every part of it is in the address."""

    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    text: str = ""
    sort: str = "task"
    descending: bool = False

    @classmethod
    def of(cls, fields: Fields) -> Query:
        chosen = {name: found for name in FACETS if (found := fields.all(name))}
        sort = fields.one("sort", "task")
        name = sort.removeprefix("-")
        return cls(chosen, fields.one("q")[:200], name if name in SORTS else "task", sort.startswith("-"))

    def fields(self) -> dict[str, tuple[str, ...] | str]:
        """The query as fields of an address."""
        sort = f"{'-' if self.descending else ''}{self.sort}"
        return {**self.chosen, "q": self.text, "sort": "" if sort == "task" else sort}

    def with_value(self, facet: str, value: str) -> Query:
        """With a value chosen, or no longer chosen if it was."""
        before = self.chosen.get(facet, ())
        after = tuple(item for item in before if item != value) if value in before else (*before, value)
        chosen = {name: values for name, values in {**self.chosen, facet: after}.items() if values}
        return Query(chosen, self.text, self.sort, self.descending)

    def sorted_by(self, sort: str) -> Query:
        """In another order, or in the opposite one."""
        return Query(self.chosen, self.text, sort, self.sort == sort and not self.descending)

    @property
    def filters(self) -> bool:
        return bool(self.chosen or self.text)


@dataclass(frozen=True, slots=True)
class FacetValue:
    """One value of a facet."""

    value: str
    count: int
    chosen: bool


@dataclass(frozen=True, slots=True)
class Facet:
    """One facet with its values, the frequent ones first."""

    name: str
    title: str
    values: tuple[FacetValue, ...]
    more: int
    """How many values are not listed."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The rows that a query selects, in its order, and the facets."""

    rows: tuple[Row, ...]
    facets: tuple[Facet, ...]


class Chooser:
    """Answers queries over the rows of a job; columns of facets are made once."""

    def __init__(self, known: Rows) -> None:
        self.known: Final = known
        self._columns = {name: list(map(value, known.rows)) for name, value in FACETS.items()}
        self._texts: list[str] | None = None
        self._orders: dict[str, list[int]] = {}

    def choose(self, query: Query) -> Chosen:
        """The rows of a query, and the facets."""
        misses = self._misses(query)
        facets = tuple(facet for name in FACETS if (facet := self._facet(name, misses, query)) is not None)
        return Chosen(tuple(self.rows(query, misses)), facets)

    def rows(self, query: Query, misses: Sequence[int] | None = None) -> list[Row]:
        """The rows of a query, in its order."""
        misses = self._misses(query) if misses is None else misses
        order = self._order(query.sort)
        ordered = reversed(order) if query.descending else order
        rows = self.known.rows
        found = [rows[index] for index in ordered if not misses[index]]
        if query.sort in ("reward", "time", "cost"):  # what is not known comes last in both directions
            value = SORTS[query.sort]
            found = [row for row in found if value(row) is not None] + [row for row in found if value(row) is None]
        return found

    def _misses(self, query: Query) -> list[int]:
        """For each row a bit for every part of the query that it does not match."""
        misses = [0] * len(self.known.rows)
        for bit, (name, values) in enumerate(query.chosen.items()):
            wanted, flag = frozenset(values), 1 << bit
            misses = [
                miss if value in wanted else miss | flag
                for miss, value in zip(misses, self._columns[name], strict=True)
            ]
        if query.text:
            words, flag = query.text.lower().split(), 1 << len(query.chosen)
            for word in words:
                misses = [
                    miss if word in text else miss | flag for miss, text in zip(misses, self._searchable(), strict=True)
                ]
        return misses

    def _facet(self, name: str, misses: Sequence[int], query: Query) -> Facet | None:
        chosen = query.chosen.get(name, ())
        allowed = 1 << list(query.chosen).index(name) if chosen else 0
        column = self._columns[name]
        if allowed:
            counts = Counter(value for value, miss in zip(column, misses, strict=True) if not miss & ~allowed)
        else:
            counts = Counter(value for value, miss in zip(column, misses, strict=True) if not miss)
        counts.pop("", None)
        for value in chosen:
            counts.setdefault(value, 0)
        if not counts:
            return None
        ranked = sorted(counts, key=lambda value: (value not in chosen, -counts[value], value))
        values = tuple(FacetValue(value, counts[value], value in chosen) for value in ranked[:MOST_VALUES])
        return Facet(name, TITLES[name], values, max(0, len(ranked) - MOST_VALUES))

    def _order(self, sort: str) -> list[int]:
        if sort not in self._orders:
            value, rows = SORTS[sort], self.known.rows
            keys: list[Any] = [value(row) for row in rows]
            missing = sort in ("reward", "time", "cost")
            if missing:
                keys = [(key is not None, key or 0) for key in keys]
            self._orders[sort] = sorted(range(len(rows)), key=keys.__getitem__)
        return self._orders[sort]

    def _searchable(self) -> list[str]:
        if self._texts is None:
            self._texts = [
                f"{row.task.name} {row.rollout} {row.agent} {row.model} {row.category} {row.code} {row.message}".lower()
                for row in self.known.rows
            ]
        return self._texts


def histogram(rows: Iterable[Row], bins: int = 10) -> list[int]:
    """How many rewards are in each of equal parts of 0 to 1; those outside are in the first and the last."""
    counts = [0] * bins
    for row in rows:
        if row.reward is not None:
            counts[min(bins - 1, max(0, int(min(1.0, max(0.0, row.reward)) * bins)))] += 1
    return counts
