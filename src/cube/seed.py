"""Seeds for repeated runs of a task, the same on every machine."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod

from cube.task import TaskMetadata
from cube.typed import TypedBaseModel


class AbstractSeedGenerator(TypedBaseModel, ABC):
    """The seeds that a task is run with."""

    @abstractmethod
    def __call__(self, task_metadata: TaskMetadata) -> list[int]: ...


class BasicSeedGenerator(AbstractSeedGenerator):
    """`n_seed` seeds per task, derived from the task's id and `meta_seed` alone."""

    n_seed: int
    meta_seed: int

    def __call__(self, task_metadata: TaskMetadata) -> list[int]:
        digest = hashlib.md5(f"{task_metadata.id}_{self.meta_seed}".encode(), usedforsecurity=False).hexdigest()
        draw = random.Random(int(digest, 16) % 2**32)  # noqa: S311  # reproducible by design
        return [draw.randrange(2**32) for _ in range(self.n_seed)]
