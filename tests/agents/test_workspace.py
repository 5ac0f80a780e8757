"""What an agent can do with files, with the rights of its user."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchflow.agents.model.model_conversation import Conversation
from benchflow.agents.workspace import MAX_TEXT, Workspace, WorkspaceError
from benchflow.models import Reply, ToolCall


@pytest.fixture
def workspace(sandbox):
    return Workspace(sandbox, "/app")


@pytest.mark.anyio
async def test_text_survives_a_round_trip_and_permissions_stay(workspace, inside):
    text = "ä\r\nline without end\tö\u2028"
    await workspace.write_text("-odd name;$(x)", text)
    await inside("chmod 640 '/app/-odd name;$(x)'")
    await workspace.edit_text("-odd name;$(x)", "ä", "Ä")
    assert await workspace.read_text("/app/-odd name;$(x)") == text.replace("ä", "Ä")
    assert await inside("stat -c %a '/app/-odd name;$(x)'") == "640\n"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("make", "said"),
    [
        ("head -c 5000000 /dev/zero > /app/f", f"larger than {MAX_TEXT} bytes"),
        ("printf '\\377' > /app/f", "is not text in UTF-8"),
        ("mkdir /app/f", "is not a regular file"),
        ("ln -s /nowhere /app/f", "is not a regular file"),
        ("ln -s /etc/shadow-like /app/f; install -m 600 /dev/null /etc/shadow-like", "is not readable"),
    ],
)
async def test_what_cannot_be_read_is_one_sentence(workspace, inside, make, said):
    await inside(make)
    with pytest.raises(WorkspaceError, match=said):
        await workspace.read_text("f")


@pytest.mark.anyio
async def test_edits_must_be_clear(workspace):
    await workspace.write_text("f", "a a b")
    for old, said in [("", "is empty"), ("x", "does not contain"), ("a", "2 times")]:
        with pytest.raises(WorkspaceError, match=said):
            await workspace.edit_text("f", old, "y")
    assert await workspace.edit_text("f", "a", "y", everywhere=True) == 2
    assert await workspace.read_text("f") == "y y b"


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["", "a\0b"])
async def test_a_path_must_be_one(workspace, path):
    with pytest.raises(WorkspaceError, match="path must not"):
        await workspace.read_text(path)


@pytest.mark.anyio
async def test_a_text_that_is_too_long_is_not_written(workspace):
    with pytest.raises(WorkspaceError, match="exceeds the limit"):
        await workspace.write_text("f", "x" * (MAX_TEXT + 1))


@settings(max_examples=settings().max_examples // 3)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2000)), max_size=8), st.integers(0, 12))
def test_a_conversation_stays_one_however_much_it_is_shortened(turns, times):
    conversation = Conversation("system")
    conversation.tell("task")
    for number, (calls, length) in enumerate(turns):
        ids = [f"{number}-{index}" for index in range(calls)]
        conversation.hear(Reply("x", tuple(ToolCall(name, "bash", "{}") for name in ids), "stop"))
        for name in ids[: max(calls - 1, 0)]:
            conversation.answer(name, "y" * length)
        conversation.answer_rest()
    for _ in range(times):
        conversation.shrink()
    assert [message["role"] for message in conversation.messages[:2]] == ["system", "user"]
    waiting = []
    for message in conversation.messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert waiting == []
            waiting = [call["id"] for call in message.get("tool_calls", ())]
    assert waiting == []
