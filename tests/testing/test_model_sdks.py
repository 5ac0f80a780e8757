"""The official clients of the providers understand the model server, each in its own dialect."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from peers import MODEL_SDKS, PeerUnavailable, peer_environment

from benchflow.testing import Answer, Fault, ModelServer, ToolCall, Usage

pytestmark = pytest.mark.slow

SLOW_DOWN = Fault(429, "slow down", retry_after_sec=0.01)
SCRIPT = [
    Answer("I look.", [ToolCall("bash", {"command": "ls"})], usage=Usage(9, 5, cached_tokens=4)),
    "some streamed words",
    SLOW_DOWN,
    SLOW_DOWN,
    "recovered",
]


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return peer_environment(*MODEL_SDKS) / "python"
    except PeerUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("dialect", ["responses", "messages", "gemini"])
def test_an_official_client_understands_answers_streams_and_errors(python: Path, dialect: str) -> None:
    with ModelServer(SCRIPT, api_key="right", models=["m"]) as server:
        command = [python, Path(__file__).with_name("sdk_calls.py"), dialect, server.root]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert server.remaining == 0
    understood: dict[str, Any] = json.loads(done.stdout)
    assert understood["call"] == ["bash", {"command": "ls"}]
    assert understood["text"] == "some streamed words"
    assert understood["usage"] == [9, 5]
    assert "slow down" in understood["error"]
    assert understood["again"] == "recovered"
    assert understood.get("logprobs", ["some", " streamed", " words"]) == ["some", " streamed", " words"]
    assert understood.get("count", 2) == 2
    assert understood.get("models", ["m"]) in (["m"], ["models/m"])
