"""An agent as npm has it plays haggle-arena over ACP and the bridge, through the model gateway, without a network."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchflow.agents import create_agent
from benchflow.record import RolloutFolder, read_messages
from benchflow.testing import ModelServer
from loaded_commands import BENCH

pytestmark = [pytest.mark.slow, pytest.mark.sandbox, pytest.mark.xdist_group("npm")]
HAGGLE = Path(__file__).parents[2] / "examples" / "packages" / "haggle-arena"
KEY = "sk-canary-0123456789"
AGENT = "pi"


def test_an_agent_of_npm_haggles_and_its_key_is_in_no_record(tmp_path):
    package = tmp_path / "haggle"
    shutil.copytree(HAGGLE, package)
    (package / "environment/install.sh").write_text(create_agent(AGENT)._launch.install_script)
    (package / "environment/Dockerfile").write_text(
        "FROM an-image-that-nobody-has\nCOPY install.sh /tmp/install.sh\n"
        "RUN sh /tmp/install.sh && rm /tmp/install.sh\n"
        f"ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/agents/{AGENT}/bin\nWORKDIR /app\n"
    )

    def model(request):
        """Offers too little first, and enough when the seller has asked for more."""
        said = json.dumps(request.messages)
        return "Too dear.\nOFFER 102" if "OFFER 118" in said else "Hello.\nOFFER 90"

    with ModelServer(model, api_key=KEY) as server:
        others = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
        own = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url, "BENCHCUBE_PERMITTED_NETWORKS": "0.0.0.0/0"}
        place = ["--sandbox", "local", "--base-image", "host", "--json"]
        who = ["--agent", AGENT, "--model", "test-model", "--participant", "seller=oracle"]
        done = subprocess.run(
            [*BENCH, "run", package, *who, *place],
            cwd=tmp_path,
            env={**others, **own},
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        asked = json.dumps([request.messages for request in server.requests])
    assert done.stdout, done.stderr
    record = json.loads(done.stdout)
    assert record["error"] is None, record["error"]
    assert record["reward"] == pytest.approx(0.9)
    assert record["arena"]["roles"]["buyer"]["agent"] == AGENT
    assert "You have 120 to spend" in asked
    folder = RolloutFolder(tmp_path / "jobs" / record["rollout"])
    said = [
        one.parts[-1].text
        for one in read_messages(folder.a2a_messages)
        if one.sender == "buyer" and one.kind == "message"
    ]
    assert ["OFFER 90" in said[0], "OFFER 102" in said[1]] == [True, True]
    assert not any(KEY.encode() in path.read_bytes() for path in folder.path.rglob("*") if path.is_file())
