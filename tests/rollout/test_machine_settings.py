"""Which phases of a rollout get this machine's settings for package mirrors, and that no record keeps them."""

import pytest

pytestmark = pytest.mark.anyio
VERIFIER = (
    'cat "$PIP_CONFIG_FILE"; if grep -q given /app/answer.txt 2>/dev/null; then echo 1; else echo 0; fi'
    " > /logs/verifier/reward.txt\n"
)
ORACLE = 'cat "$PIP_CONFIG_FILE" 2>/dev/null && echo given > answer.txt; true\n'
NETWORK = "agent: {network_mode: public}\nverifier: {network_mode: public}\nenvironment: {network_mode: public}\n"


@pytest.mark.parametrize(
    ("reach", "seen_by_agent", "seen_by_verifier"),
    [("none", False, False), ("build", False, False), ("verify", False, True), ("all", True, True)],
)
async def test_a_phase_gets_the_settings_that_the_user_allows(
    make_package, run, tmp_path, reach, seen_by_agent, seen_by_verifier
):
    (tmp_path / "home/.config/pip").mkdir(parents=True)
    address = "https://me:pw-of-the-mirror@mirror.test/simple"
    (tmp_path / "home/.config/pip/pip.conf").write_text(f"[global]\nindex-url = {address}\n")
    machine = {"HOME": str(tmp_path / "home"), "BENCHCUBE_MACHINE_SETTINGS": reach}
    package = make_package(NETWORK, {"oracle/solve.sh": ORACLE}, verifier=VERIFIER)
    result = await run(package, "oracle", machine=machine)
    assert result.status == "scored", result.error
    assert (result.reward == 1) is seen_by_agent
    said = (tmp_path / "out/verifier/test-stdout.txt").read_text()
    assert ("mirror.test" in said) is seen_by_verifier
    kept = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [data for data in kept if b"pw-of-the-mirror" in data]
