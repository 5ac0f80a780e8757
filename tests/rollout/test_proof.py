"""Isolation by proof: the rung of a package that declares `auto` is found by its own oracle, once, and kept."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from benchflow.record import Isolation, Proof
from benchflow.record.proof import list_proofs, proofs_of
from benchflow.rollout import RolloutConfig, proving
from benchflow.rollout.proving import Proofs
from benchflow.rollout.rollout import proven_isolation
from benchflow.task.package import load_package

pytestmark = pytest.mark.anyio
ROOT = "[agent]\nuser = 'root'\n"
SYSTEM = "if [ -f /etc/answer ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


@pytest.fixture
def split(tmp_path):
    """A split package with a solution and a test."""

    def make(solution, test, *, toml="", name="split"):
        folder = tmp_path / name
        files = {"task.toml": f"version = '1.0'\n{toml}", "instruction.md": "Do it.", "tests/test.sh": test}
        for path, content in {**files, "solution/solve.sh": solution}.items():
            if content is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(content)
        return folder

    return make


@pytest.fixture
def proofs(tmp_path):
    return Proofs(tmp_path / "proofs")


@pytest.fixture
def kept(tmp_path):
    """The proofs that were kept of a package."""
    return lambda folder: list(list_proofs(tmp_path / "proofs", load_package(folder).content_digest))


@pytest.fixture
def oracle_runs(monkeypatch):
    """How often an oracle was run for a proof."""
    runs = []
    climb = proving._climb

    async def counted(climbs, run):
        async def once(make_verifier):
            runs.append(make_verifier)
            return await run(make_verifier)

        return await climb(climbs, once)

    monkeypatch.setattr(proving, "_climb", counted)
    return runs


def notes(result):
    return [issue.code for issue in result.verifier.diagnostics]


async def test_a_solution_of_files_proves_shared_and_is_kept(run, split, proofs, kept, oracle_runs):
    test = "grep -q done /app/answer.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    folder = split("echo done > answer.txt\n", test)
    result = await run(folder, "nop", proofs=proofs)
    (proof,) = kept(folder)
    assert result.verifier.isolation == Isolation("shared", "proof", proof.digest)
    assert result.reward == 0.0
    assert notes(result) == []
    assert [(item.rung, item.reward) for item in proof.steps[0].outcomes] == [("shared", 1.0), ("open", 1.0)]
    assert len(oracle_runs) == 1


async def test_a_solution_that_is_system_state_proves_system(run, split, proofs, kept):
    result = await run(split("echo > /etc/answer\n", SYSTEM), "nop", proofs=proofs)
    assert result.verifier.isolation.rung == "system"
    (proof,) = kept(split("echo > /etc/answer\n", SYSTEM))
    assert [item.rung for item in proof.steps[0].outcomes] == ["shared", "shared", "system", "open"]


@pytest.mark.sandbox
async def test_a_setting_that_programs_look_for_is_seen_if_the_oracle_writes_it(run, split, proofs, tmp_path):
    program = (
        "RUN printf '#!/bin/sh\\n[ ! -e /etc/zone ] || cat /etc/zone\\n' > /usr/bin/zone && chmod 755 /usr/bin/zone"
    )
    folder = split("echo north > /etc/zone\n", "zone | grep -c north > /logs/verifier/reward.txt\n", toml=ROOT)
    (folder / "environment").mkdir()
    (folder / "environment/Dockerfile").write_text(f"FROM debian:12\nWORKDIR /app\n{program}\n")
    (tmp_path / "same.sh").write_text("echo 'to the north' > /etc/zone\n")
    (tmp_path / "other.sh").write_text("echo 'exit 0' > /etc/zone.d\n")
    options = {"proofs": proofs, "base_image": "host"}
    same = await run(folder, f"script:{tmp_path}/same.sh", **options)
    assert (same.verifier.isolation.rung, same.reward) == ("system", 1.0), same
    other = await run(folder, f"script:{tmp_path}/other.sh", out="other", **options)
    assert other.reward == 0


async def test_declared_deliveries_let_separate_be_proven(run, split, proofs):
    test = "if [ -f /app/answer ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    folder = split("echo > answer\n", test, toml="artifacts = ['/app/answer']\n")
    assert (await run(folder, "oracle", proofs=proofs)).verifier.isolation.rung == "separate"
    undeclared = split("echo > answer\n", test, name="undeclared")
    assert (await run(undeclared, "oracle", proofs=proofs)).verifier.isolation.rung == "shared"


async def test_a_package_without_an_oracle_is_verified_in_the_open_with_a_warning(run, split, proofs, oracle_runs):
    result = await run(split(None, SYSTEM), "nop", proofs=proofs)
    assert result.verifier.isolation == Isolation("open", "default", None)
    assert notes(result) == ["proof-no-oracle"]
    assert oracle_runs == []


async def test_an_oracle_that_fails_is_named_and_nothing_is_kept(run, split, proofs, kept, oracle_runs):
    folder = split("true\n", SYSTEM)
    result = await run(folder, "nop", proofs=proofs)
    assert result.verifier.isolation == Isolation("open", "default", None)
    assert notes(result) == ["proof-oracle-fails"]
    assert (kept(folder), len(oracle_runs)) == ([], 2)
    await run(folder, "nop", proofs=proofs, out="again")
    assert len(oracle_runs) == 2, "within a job it is known"


async def test_an_oracle_that_is_never_scored_ends_after_four_runs(run, split, proofs, kept, oracle_runs):
    folder = split("echo > /etc/answer\n", "true\n")
    result = await run(folder, "nop", proofs=proofs)
    assert result.error.code == "reward-missing"
    assert "proof-undecided" in notes(result)
    assert (kept(folder), len(oracle_runs)) == ([], 4)


async def test_an_oracle_that_cannot_run_is_not_run_again_and_again(run, split, proofs, oracle_runs):
    folder = split("true\n", SYSTEM, toml="[solution.env]\nKEY = '${NOT_SET_ANYWHERE}'\n")
    result = await run(folder, "nop", proofs=proofs)
    assert notes(result) == ["proof-undecided"]
    assert "NOT_SET_ANYWHERE" in result.verifier.diagnostics[0].message


async def test_a_proof_is_found_once_for_all_rollouts_and_later_jobs(run, split, proofs, tmp_path, oracle_runs):
    folder = split("echo > /etc/answer\n", SYSTEM)
    found = []

    async def one(number):
        found.append((await run(folder, "nop", proofs=proofs, out=f"out-{number}")).verifier.isolation)

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(one, number)
    later = await run(folder, "nop", proofs=Proofs(tmp_path / "proofs"), out="later")
    assert {*found, later.verifier.isolation} == {found[0]}
    assert len(oracle_runs) == 1


async def test_a_proof_of_another_environment_content_or_rule_is_never_used(
    backend, split, proofs, kept, oracle_runs, tmp_path, monkeypatch
):
    folder = split("echo > /etc/answer\n", SYSTEM)
    package = load_package(folder)
    config = RolloutConfig(package, "nop", proofs=proofs)
    await proven_isolation(package, backend, config, {})
    (proof,) = kept(folder)
    for name in ("content_digest", "environment", "sandbox", "rules"):
        other = replace(proof.key, **{name: "other"})
        assert other.place(tmp_path) != proof.key.place(tmp_path)
    changed = replace(proof.key, environment="other")
    moved = changed.place(tmp_path / "proofs")
    moved.parent.mkdir(parents=True, exist_ok=True)
    moved.write_bytes(proof.key.place(tmp_path / "proofs").read_bytes())
    assert proving.recall_proof(tmp_path / "proofs", changed) is None, "a file in the wrong place proves nothing"
    monkeypatch.setattr(proving, "rules", lambda: "newer")
    await proven_isolation(package, backend, replace(config, proofs=Proofs(tmp_path / "proofs")), {})
    assert len(oracle_runs) == 2


async def test_a_damaged_proof_is_proven_again(backend, split, kept, tmp_path, oracle_runs):
    folder = split("echo > /etc/answer\n", SYSTEM)
    package = load_package(folder)
    config = RolloutConfig(package, "nop", proofs=Proofs(tmp_path / "proofs"))
    await proven_isolation(package, backend, config, {})
    (place,) = proofs_of(tmp_path / "proofs", package.content_digest).glob("*.json")
    place.write_text(place.read_text()[:-20])
    await proven_isolation(package, backend, replace(config, proofs=Proofs(tmp_path / "proofs")), {})
    (proof,) = kept(folder)
    assert isinstance(proof, Proof)
    assert len(oracle_runs) == 2


@pytest.fixture
def in_steps(split):
    """A split package with steps, each with a solution and a test."""

    def make(**steps):
        folder = split(None, "true\n", toml="".join(f"[[steps]]\nname = '{name}'\n" for name in steps))
        for name, (solution, test) in steps.items():
            files = {"instruction.md": "Do it.", "tests/test.sh": test, "solution/solve.sh": solution}
            for path, content in files.items():
                place = folder / "steps" / name / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(content)
        return folder

    return make


def rewarding(condition):
    return f"if {condition}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


async def test_each_step_has_its_own_rung(run, in_steps, proofs):
    folder = in_steps(one=("echo > one\n", rewarding("[ -f /app/one ]")), two=("echo > /etc/answer\n", SYSTEM))
    result = await run(folder, "oracle", proofs=proofs)
    assert result.reward == 1.0
    assert [step.verifier.isolation.rung for step in result.steps] == ["shared", "system"]


@pytest.fixture
def prepared(in_steps):
    """A package whose first verifier, if it is satisfied, lays out what the second one compares with."""
    first = f"[ -f /app/one ] && mkdir -p /opt/next && echo > /opt/next/data\n{rewarding('[ -f /app/one ]')}"
    second = rewarding("[ -f /app/two ] && [ -f /opt/next/data ]")
    third = rewarding("[ -f /app/three ]")  # not reached if the second one fails
    folder = in_steps(one=("echo > one\n", first), two=("echo > two\n", second), three=("echo > three\n", third))
    task = folder / "task.toml"
    task.write_text(task.read_text().replace("name = 'two'\n", "name = 'two'\nmin_reward = 1.0\n"))
    return folder


@pytest.mark.sandbox
async def test_where_a_verifier_prepares_the_next_step_the_open_box_is_proven_for_all(
    run, prepared, proofs, kept, oracle_runs
):
    result = await run(prepared, "oracle", proofs=proofs)
    (proof,) = kept(prepared)
    assert result.reward == 1.0
    assert [step.verifier.isolation for step in result.steps] == [Isolation("open", "proof", proof.digest)] * 3
    assert "proof-open-only" in notes(result)
    assert max(item.run for step in proof.steps for item in step.outcomes) == len(oracle_runs) + 1 == 3
    assert (await run(prepared, "nop", proofs=proofs, out="nothing")).reward == 0.0


@pytest.mark.sandbox
@pytest.mark.parametrize(("rung", "rewards"), [("open", [1.0, 1.0, 1.0]), ("system", [1.0, 0.0, None])])
async def test_a_verifier_prepares_the_next_step_in_the_open_box_only(run, prepared, proofs, rung, rewards):
    result = await run(prepared, "oracle", proofs=proofs, isolation=rung)
    assert [step.rewards.get("reward") for step in result.steps] == rewards


async def test_steps_of_an_oracle_that_fails_in_one_box_too_are_proven_one_by_one(
    run, in_steps, proofs, kept, oracle_runs
):
    folder = in_steps(one=("echo > one\n", rewarding("[ -f /app/one ]")), two=("true\n", rewarding("false")))
    result = await run(folder, "oracle", proofs=proofs)
    assert [step.verifier.isolation.rung for step in result.steps] == ["shared", "open"]
    assert notes(result) == ["proof-oracle-fails"]
    assert kept(folder) == []


async def test_the_user_may_choose_any_rung(run, split, make_package, proofs, oracle_runs):
    folder = split("echo > /etc/answer\n", SYSTEM)
    result = await run(folder, "oracle", proofs=proofs, isolation="shared")
    assert (result.reward, result.verifier.isolation) == (0.0, Isolation("shared", "user", None))
    assert oracle_runs == []
    native = make_package("", verifier=SYSTEM, files={"oracle/solve.sh": "echo > /etc/answer\n"})
    assert (await run(native, "oracle", proofs=proofs, out="native")).reward == 0.0
    proven = await run(native, "oracle", proofs=proofs, out="auto", isolation="auto")
    assert (proven.reward, proven.verifier.isolation.rung) == (1.0, "system")


async def test_the_choice_of_the_user_is_part_of_what_was_run(split):
    package = load_package(split("true\n", SYSTEM))
    plain = RolloutConfig(package, "nop")
    keys = {replace(plain, isolation=value).settings().digest() for value in (None, "auto", "shared", "open")}
    assert len(keys) == 4


async def test_work_below_full_is_checked_at_the_next_wider_rung_and_keeps_its_reward(run, split, proofs):
    test = "if [ -f /app/answer ] || [ -f /etc/answer ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    folder = split("echo > answer\n", test, toml="[agent]\nuser = 'root'\n")
    result = await run(folder, "shell", ["echo > /etc/answer"], proofs=proofs)
    assert (result.reward, result.verifier.isolation.rung) == (0.0, "shared")
    assert (result.verifier.wider.rung, result.verifier.wider.reward) == ("system", 1.0)
    full = await run(folder, "oracle", proofs=proofs, out="full")
    assert full.verifier.wider is None
    nothing = await run(folder, "nop", proofs=proofs, out="nothing")
    assert nothing.verifier.wider is None, "nothing was withheld"


async def test_a_solution_that_only_the_open_box_shows_is_verified_there_with_a_warning(run, split, proofs, kept):
    test = "if [ -f /app/__pycache__/x.pyc ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    folder = split("mkdir __pycache__; echo > __pycache__/x.pyc\n", test)
    result = await run(folder, "oracle", proofs=proofs)
    (proof,) = kept(folder)
    assert (result.reward, result.verifier.isolation) == (1.0, Isolation("open", "proof", proof.digest))
    assert notes(result) == ["proof-open-only"]


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("solution", "seen", "rung"),
    [
        ("echo done > answer", "grep -q done /app/answer", "shared"),
        ("echo done > /etc/answer", "grep -q done /etc/answer", "system"),
        ("mkdir __pycache__", "[ -d /app/__pycache__ ]", "open"),
    ],
)
async def test_real_oracles_prove_the_rung_that_they_need(run, split, proofs, solution, seen, rung):
    test = f"if {seen}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    folder = split(f"{solution}\n", test, toml="[environment]\nallow_internet = false\n")
    result = await run(folder, "oracle", proofs=proofs)
    assert (result.reward, result.verifier.isolation.rung) == (1.0, rung)
    assert result.verifier.isolation.chosen_by == "proof"
    assert (await run(folder, "nop", proofs=proofs, out="nop")).reward == 0.0


@pytest.mark.sandbox
async def test_a_solution_that_is_a_running_service_proves_services(run, split, proofs):
    serve = "cd /srv && setsid python3 -m http.server 8099 >/dev/null 2>&1 &\nsleep 2\n"
    fetch = "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8099/\", timeout=5)'"
    test = f"if {fetch}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    folder = split(serve, test, toml="[environment]\nallow_internet = false\n")
    result = await run(folder, "oracle", proofs=proofs)
    assert (result.reward, result.verifier.isolation.rung) == (1.0, "services")


async def test_a_kept_proof_counts_only_if_it_reaches_what_the_evidence_requires_now(run, make_package, tmp_path):
    declared = "verifier: {{isolation: auto}}\nbenchflow: {{evidence: {{oracle_runs: {{required_reward: {}}}}}}}\n"
    half = "if [ -f /app/answer.txt ]; then echo 0.5; else echo 0; fi > /logs/verifier/reward.txt\n"
    folder = make_package(declared.format(0.5), verifier=half)
    first = await run(folder, "nop", proofs=Proofs(tmp_path / "proofs"))
    assert (first.verifier.isolation.rung, first.verifier.isolation.chosen_by) == ("shared", "proof")
    make_package(declared.format(1.0), verifier=half)
    again = await run(folder, "nop", proofs=Proofs(tmp_path / "proofs"), out="again")
    assert notes(again) == ["proof-oracle-fails"]
