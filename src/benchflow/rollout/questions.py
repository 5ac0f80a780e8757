"""Whether somebody asked, and for what: pure questions about texts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_SENTENCE: Final = re.compile(r"[^.!?\n]+[.!?]*|[?]")
_ASKING: Final = re.compile(
    r"\?\s*$|^(what|which|where|when|who|whose|how)\b|\b(clarify|tell me|let me know|need to know"
    r"|please (give|provide|specify|share|confirm)|could you|can you|do you know)\b",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[a-z0-9]+")
_SHORTEST: Final = 3
_EMPTY_WORDS: Final = frozenset(
    ("the", "and", "for", "with", "use", "need", "this", "that", "from", "only", "after", "what", "which", "are", "you")
)


def questions_in(messages: Iterable[str]) -> list[str]:
    """The sentences that ask for something."""
    sentences = (sentence.strip() for message in messages for sentence in _SENTENCE.findall(message))
    return [sentence for sentence in sentences if _ASKING.search(sentence)]


def signal_words(text: str) -> frozenset[str]:
    """The words of a text that say what it is about; all of its words when none does."""
    words = _WORD.findall(text.lower().replace("_", " "))
    telling = frozenset(word for word in words if len(word) >= _SHORTEST and word not in _EMPTY_WORDS)
    return telling or frozenset(words)


def asks_about(messages: Iterable[str], key: str, value: str) -> bool:
    """Whether one question names all that a fact's key is about, or says its whole value."""
    subjects = [words for words in (signal_words(key), frozenset(_WORD.findall(value.lower()))) if words]
    for question in questions_in(messages):
        said = _WORD.findall(question.lower())
        if any(all(_mentioned(word, said) for word in words) for words in subjects):
            return True
    return False


def _mentioned(word: str, said: list[str]) -> bool:
    """The word itself, or a form of it: `region` is mentioned in `regions`."""
    return any(other == word or (len(word) >= _SHORTEST and other.startswith(word)) for other in said)
