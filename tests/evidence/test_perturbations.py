"""What a verifier depends on is found, what it does not depend on is not, and what could not be tried is said."""

import pytest

from benchflow.evidence.cases import not_perturbed
from benchflow.evidence.perturbations import PERTURBATIONS, perturb
from benchflow.evidence.trial_stage import StageOptions, open_stage
from benchflow.task.config.evidence_config import PERTURBATIONS as DECLARABLE
from benchflow.task.package import load_package

pytestmark = pytest.mark.anyio
DELICATE = """\
fits() {
  [ "$(date +%F)" = "$(date -u +%F)" ] && [ -z "$LC_ALL$PYTHONHASHSEED" ] && [ "$(nproc)" -gt 1 ] &&
  [ "$(wc -l < /proc/net/route)" -gt 1 ] && [ "$(id -u)" = 0 ] &&
  [ $(($(date +%s) - $(stat -c %Y answer.txt))) -lt 43200 ]
}
if fits; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
CAREFUL = """\
began=$(date +%s)
echo text > made.txt
test "$(stat -c %Y made.txt)" -ge "$((began - 1))" && grep -q done answer.txt && echo 1 > /logs/verifier/reward.txt
"""
TWO_PROCESSORS = "environment:\n  cpus: 2\n"


async def of(folder, backend, names=tuple(PERTURBATIONS)):
    async with open_stage(folder, StageOptions(sandbox=backend)) as stage:
        return await perturb(stage, [1.0], {name: PERTURBATIONS[name] for name in names})


@pytest.mark.sandbox
async def test_a_verifier_that_depends_on_everything_fails_every_perturbation(make_package, backend):
    found = await of(make_package(TWO_PROCESSORS, verifier=DELICATE), backend)
    assert [case.name for case in found.cases.values() if case.passed] == []
    assert {case.name for case in found.cases.values()} | set(found.not_applied) == set(PERTURBATIONS)
    assert set(found.not_applied) <= {"processors"}, "only a machine with one processor cannot try all"
    assert {case.rewards for case in found.cases.values()} == {(0.0, 0.0)}
    reasons = {case.name: case.reasons[0] for case in found.cases.values()}
    assert reasons["clock"].startswith(
        "the reward is 0 a day later, and 1 otherwise; a verifier that needs it declares"
    )
    assert "declares verifier.user, or user in benchflow.evidence.verifier.depends_on" in reasons["user"]


@pytest.mark.sandbox
async def test_a_verifier_that_depends_on_nothing_withstands_them_all(make_package, backend):
    found = await of(make_package(TWO_PROCESSORS, verifier=CAREFUL), backend)
    assert [(case.name, case.reasons) for case in found.cases.values() if not case.passed] == []
    assert set(found.not_applied) <= {"processors"}


async def test_what_the_package_declares_is_not_perturbed(make_package, backend):
    declared = "verifier:\n  user: root\n  network_mode: public\n  env: {TZ: UTC}\n"
    found = await of(make_package(declared), backend, ("time-zone", "network", "user"))
    assert found.cases == {}
    assert found.not_applied == {
        "time-zone": "the package sets TZ",
        "network": "the verifier declares that it uses the network",
        "user": "the verifier declares that it runs as root",
    }


async def test_a_verifier_that_depends_on_the_seed_is_found_in_memory(make_package, backend):
    verifier = 'if [ -z "$SEED" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
    found = await of(make_package(verifier=verifier), backend, ("seed",))
    assert [(case.type, case.passed, case.expect.reward_equals) for case in found.cases.values()] == [
        ("perturbation", False, 1.0)
    ]


async def test_where_verification_is_not_pure_every_perturbation_has_a_run_of_its_own(make_package, backend):
    verifier = 'if [ -z "$SEED" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
    found = await of(make_package("verifier:\n  isolation: open\n", verifier=verifier), backend, ("seed", "user"))
    assert [(case.name, case.rewards) for case in found.cases.values()] == [("seed", (0.0, 0.0))]
    assert found.not_applied == {"user": "the verifier runs in the agent's own sandbox"}


async def test_a_verifier_of_the_whole_system_is_not_expected_to_do_without_root(make_package, backend):
    found = await of(make_package("verifier:\n  isolation: system\n"), backend, ("user",))
    assert found.not_applied == {"user": "the verifier looks at the whole system, which belongs to root"}


async def test_a_reward_that_the_result_gets_anyway_is_no_difference(make_package, backend):
    verifier = 'if [ -z "$SEED" ]; then echo 1; else echo 0.5; fi > /logs/verifier/reward.txt\n'
    folder = make_package(verifier=verifier)
    async with open_stage(folder, StageOptions(sandbox=backend)) as stage:
        found = await perturb(stage, [0.5, 1.0], {"seed": PERTURBATIONS["seed"]})
    assert found.cases["seed"].passed
    assert found.cases["seed"].expect.reward_range == (0.5, 1.0)


@pytest.mark.parametrize(
    ("verifier", "names"),
    [
        ("pip install pytest\n", {"network"}),
        ("apt-get install -y curl\n", {"network", "user"}),
        ("curl -s http://localhost:80/\n", set()),
    ],
)
def test_a_verifier_that_downloads_or_installs_is_not_expected_to_do_without(make_package, verifier, names):
    assert set(not_perturbed(load_package(make_package(verifier=verifier)))) == names


def test_every_perturbation_can_be_declared():
    assert tuple(PERTURBATIONS) == DECLARABLE
