"""A program that speaks A2A as a participant: what it said in pieces is one answer."""

import pytest

from benchflow.arena.a2a_types import ArtifactEvent, Message, Part, StatusEvent, parts_of, text_of
from benchflow.arena.peers.participant_program import PeerExecutor

pytestmark = pytest.mark.anyio


class Pieces:
    """A peer that says one artifact in pieces, and another one twice."""

    async def exchange(self, message, timeout):
        for artifact, text, append in (
            ("a", "one", False),
            ("a", "two", True),
            ("b", "old", False),
            ("b", "new", False),
        ):
            yield ArtifactEvent("t", "c", artifact, (Part.of_text(text),), append=append)
        yield StatusEvent("t", "c", "completed")


async def test_pieces_of_an_artifact_are_joined_and_a_repeated_one_replaces_the_first():
    reply = await PeerExecutor("buyer", Pieces()).answer(Message(parts_of("go")), "game", None)
    assert text_of(reply.parts).split() == ["one", "two", "new"]
