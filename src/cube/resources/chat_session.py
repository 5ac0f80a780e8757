"""The contract of conversations between an agent and a user."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, TypedDict

from cube.typed import TypedBaseModel

ChatRole = Literal["user", "assistant", "infeasible"]


class ChatMessage(TypedDict):
    role: ChatRole
    timestamp: float
    message: str


class ChatSession(ABC):
    """A conversation."""

    @property
    @abstractmethod
    def messages(self) -> list[ChatMessage]:
        """All messages so far; a copy."""

    @abstractmethod
    def add_message(self, role: ChatRole, msg: str) -> None: ...

    @abstractmethod
    def send_message(self, text: str) -> None:
        """The agent says something to the user."""

    @abstractmethod
    def wait_for_user_message(self) -> str:
        """What the user says next."""

    @abstractmethod
    def stop(self) -> None:
        """End the conversation; safe to call again."""


class ChatConfig(TypedBaseModel, ABC):
    """The settings of a conversation."""

    @abstractmethod
    def make(self) -> ChatSession: ...
