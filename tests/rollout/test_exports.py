"""What `benchflow.rollout` offers, and what importing it does not cost."""

import subprocess
import sys

import benchflow.rollout


def test_every_name_can_be_imported_and_no_other():
    for name in benchflow.rollout.__all__:
        assert getattr(benchflow.rollout, name).__name__ == name
    assert not hasattr(benchflow.rollout, "Nothing")
    assert set(benchflow.rollout.__all__) >= {
        "BaseUser", "DocumentNudgeUser", "FunctionUser", "ModelDocumentNudgeUser", "PassthroughUser", "Role",
        "Rollout", "RolloutConfig", "Scene", "Turn", "run_rollout",
    }  # fmt: skip


def test_reading_records_loads_no_runtime():
    program = "import sys, benchflow.record; print([m for m in sys.modules if 'sandbox' in m or 'litellm' in m])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == "[]"


def test_running_an_agent_on_a_package_needs_no_gym_no_model_no_game_and_no_proxy():
    imports = "benchflow.rollout.rollout, benchflow.agents.oracle_agent, benchflow.sandbox.local.local_backend"
    unneeded = ("pydantic", "cube", "litellm", "httpx", "benchflow.models", "benchflow.sandbox.network.egress")
    unneeded += ("benchflow.arena.a2a_types",)
    script = f"import sys, {imports}; print([name for name in {unneeded} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
