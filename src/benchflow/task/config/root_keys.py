"""All root keys of a `task.md` in one record: the shared configuration, the document keys and the profile
references.
"""

from __future__ import annotations

from typing import Final

from benchflow.task.config import kinds
from benchflow.task.config.interaction import Agents, Scene, User
from benchflow.task.config.kinds import some_text
from benchflow.task.config.namespace import Namespace
from benchflow.task.config.parsed_record import field
from benchflow.task.config.task_config import TaskConfig

PROFILE_KEYS: Final = ("environment-profile", "agent-profile", "verifier-profile")


class DocumentRoot(TaskConfig):
    """Everything that may stand at the root of a document."""

    agents: Agents = field(kinds.record(Agents), default=Agents())
    scenes: tuple[Scene, ...] = field(kinds.listing(kinds.record(Scene)), default=())
    user: User | None = field(kinds.record(User), default=None)
    benchflow: Namespace = field(kinds.record(Namespace), default=Namespace())
    environment_profile: str | None = field(some_text, default=None, key="environment-profile")
    agent_profile: str | None = field(some_text, default=None, key="agent-profile")
    verifier_profile: str | None = field(some_text, default=None, key="verifier-profile")

    def config(self) -> TaskConfig:
        """The part that split layouts share."""
        return TaskConfig.of({name: value for name, value in self.__dict__.items() if name in TaskConfig.FIELDS})
