"""Leaderboard files of real jobs: verdicts are computed again from what was kept, and signatures say who vouches."""

import contextlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace

import pytest

from benchflow.cli import main
from benchflow.evidence.leaderboard.board_file import open_board
from benchflow.evidence.leaderboard.board_signing import signature_problem, signer
from benchflow.record import TaskId, work_key

SAYS = "grep -q done /app/answer.txt && r=1 || r=0; echo $r > /logs/verifier/reward.txt\n"


def bench(*arguments, cwd):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def verify(cwd, *arguments, file="board.zip"):
    done = bench("leaderboard", "verify", file, "--json", *arguments, cwd=cwd)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def published(tmp_path, make_package, sandbox_name):
    """A folder with a package, a finished job of two attempts, and its file."""
    make_package(name="a", verifier=SAYS)
    run = ("eval", "run", "a", "--agent", "oracle", "--attempts", 2, "--sandbox", sandbox_name, "--name", "job")
    assert bench(*run, cwd=tmp_path).returncode == 0
    assert bench("leaderboard", "export", "job", "-o", "board.zip", cwd=tmp_path).returncode == 0
    shutil.rmtree(tmp_path / "jobs")
    return tmp_path


def swapped(published, forged):
    """The file with the workspace of an agent that did nothing in the place of the first one."""
    file = open_board(published / "board.zip")
    name = next(path for path in file.places if path.endswith("workspace.tar.gz"))
    stream = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(file.text(name))) as before, tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for entry in before:
            if not entry.name.endswith("answer.txt"):
                tar.addfile(entry, before.extractfile(entry) if entry.isfile() else None)
    return forged(published / "board.zip", {name: stream.getvalue()}), name.rpartition("/")[0]


def test_verdicts_are_confirmed_on_another_machine_without_the_job(published):
    code, report = verify(published, "--packages", "a")
    assert (code, report["problems"]) == (0, [])
    assert report["verdicts"] == {"confirmed": 2, "not_recomputed": []}


@pytest.mark.sandbox
@pytest.mark.slow
def test_a_job_on_the_local_sandbox_is_published_and_its_verdicts_are_confirmed(published, forged):
    code, report = verify(published, "--packages", "a")
    assert (code, report["verdicts"]) == (0, {"confirmed": 2, "not_recomputed": []})
    path, folder = swapped(published, forged)
    code, report = verify(published, "--packages", "a", file=path)
    message = "its verdict is 1.0, and its workspace gives 0.0"
    assert (code, report["problems"]) == (1, [{"code": "verdict-wrong", "file": folder, "message": message}])


def test_a_swapped_workspace_gives_another_verdict(published, forged):
    path, folder = swapped(published, forged)
    assert verify(published, file=path)[0] == 0
    code, report = verify(published, "--packages", "a", file=path)
    message = "its verdict is 1.0, and its workspace gives 0.0"
    assert (code, report["problems"]) == (1, [{"code": "verdict-wrong", "file": folder, "message": message}])


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda task: (task / "verifier/test.sh").write_text(SAYS + "\n"), "other-package", "another content digest"),
        (lambda task: (task / "task.md").write_text("---\ntask: {name: x/y}\n---\nx\n"), "package-missing", "missing"),
    ],
)
def test_another_package_is_named(published, change, code, message):
    change(published / "a")
    status, report = verify(published, "--packages", "a")
    assert status == 1
    assert {problem["code"] for problem in report["problems"]} == {code}
    assert all(message in problem["message"] for problem in report["problems"])


RECORDS = ("results.jsonl", "result.json")


def relabelled(published, forged, change, *, names=RECORDS):
    """The file with every record of these names changed, hashes and claims computed anew."""
    file = open_board(published / "board.zip")
    parts = {name: change(file.text(name)) for name in file.places if name.endswith(names)}
    return forged(published / "board.zip", parts)


def without_workspaces(text):
    lines = [json.loads(line) for line in text.splitlines()]
    kept = {"kept": False, "reason": "The workspace was not wanted."}
    return b"".join(json.dumps({**line, "workspace": kept}).encode() + b"\n" for line in lines)


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        (b'"rung":"shared"', b'"rung":"services"', "isolation-wrong", "the package is verified at 'shared'"),
        (b'"rung":"shared"', b'"rung":"open"', "isolation-wrong", "it was verified at 'open'"),
        (b'"rung":"shared","chosen_by":"default"', b'"rung":"open","chosen_by":"proof"', "isolation-wrong", "'open'"),
        (b'"strategy":"script"', b'"strategy":"assessor"', "record-edited", "the package declares script"),
    ],
)
def test_a_record_that_says_its_verdict_cannot_be_computed_again_is_refused(published, forged, old, new, code, message):
    def change(text):
        return text.replace(old, new)

    path = relabelled(published, forged, change)
    found = verify(published, "--packages", "a", file=path)[1]
    assert code in {problem["code"] for problem in found["problems"]}
    assert any(message in problem["message"] for problem in found["problems"])


def test_a_score_without_a_verifier_is_refused(published, forged):
    def change(text):
        return b"".join(
            json.dumps({**json.loads(line), "verifier": None}).encode() + b"\n" for line in text.splitlines()
        )

    code, report = verify(published, "--packages", "a", file=relabelled(published, forged, change))
    assert code == 1
    assert {problem["message"] for problem in report["problems"]} == {"it has a score, and no verifier"}


def test_workspaces_that_were_not_kept_are_marked_and_can_be_demanded(published, forged):
    file = open_board(published / "board.zip")
    parts = {name: without_workspaces(file.text(name)) for name in file.places if name.endswith(RECORDS)}
    path = forged(published / "board.zip", parts, gone=["workspace.tar.gz"])
    code, report = verify(published, "--packages", "a", file=path)
    assert (code, report["verdicts"]["confirmed"], len(report["verdicts"]["not_recomputed"])) == (0, 0, 2)
    assert "rollouts without a kept workspace: 2" in report["jobs"][0]["marks"]
    code, report = verify(published, "--packages", "a", "--all-verdicts", file=path)
    assert (code, {problem["code"] for problem in report["problems"]}) == (1, {"verdict-unconfirmed"})


def test_tasks_that_were_left_out_are_named(published, make_package):
    make_package(name="b", verifier=SAYS)
    make_package(name="c", verifier=SAYS)
    code, report = verify(published, "--packages", "a", "--packages", "b", "--packages", "c")
    assert code == 1
    [problem] = report["problems"]
    assert (problem["code"], problem["message"].startswith("2 of the 3 packages have no result: ")) == (
        "task-missing",
        True,
    )


def test_one_package_that_is_counted_twice_is_refused(published, forged):
    """Every rollout once more as that of a second package of the same name and content."""
    file = open_board(published / "board.zip")
    job = "jobs/job"
    settings = file.board.jobs[0].settings_digest
    lines, parts = [], {}
    for number, line in enumerate(map(json.loads, file.text(f"{job}/results.jsonl").splitlines())):
        task = {**line["task"], "ordinal": 2}
        identity = TaskId(task["name"], task["content_digest"], 2)
        again = {**line, "task": task, "key": work_key(identity, settings, line["attempt"]), "rollout": f"x{number}"}
        lines += [line, again]
        base = f"{job}/rollouts/{line['rollout']}/"
        for name in (name for name in file.places if name.startswith(base)):
            data = file.text(name)
            place = name.replace(base, f"{job}/rollouts/x{number}/")
            parts[place] = data.replace(b'"seq":1', b'"x":0,"seq":1') if name.endswith("trajectory.jsonl") else data
        without = {key: value for key, value in again.items() if key != "rollout"}
        parts[f"{job}/rollouts/x{number}/result.json"] = json.dumps(without).encode()
    parts[f"{job}/results.jsonl"] = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    request = json.loads(file.text(f"{job}/job.json"))
    parts[f"{job}/job.json"] = json.dumps({**request, "planned": 4}).encode()
    path = forged(published / "board.zip", parts)
    assert verify(published, file=path)[0] == 0
    code, report = verify(published, "--packages", "a", file=path)
    assert (code, {problem["code"] for problem in report["problems"]}) == (1, {"other-package"})


@pytest.mark.parametrize(
    "archive",
    [
        b"not an archive",
        lambda tar: tar.addfile(*entry("workspace.json", b'{"schema": "benchcube.workspace.v1", "deleted": 5}')),
        lambda tar: tar.addfile(*entry("workspace.json", b"[" * 100_000)),
        lambda tar: manifest(tar).addfile(*entry("files/../../escape", b"x")),
        lambda tar: manifest(tar).addfile(*entry("files/app/x", b"x", mtime=1e30)),
        lambda tar: manifest(tar).addfile(*entry("files/app/device", b"", type=tarfile.CHRTYPE)),
        pytest.param(
            lambda tar: manifest(tar).addfile(*entry("files/app/pax", b"", pax_headers={"comment": "x" * (80 << 20)})),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_hostile_workspace_confirms_nothing_and_ends_nothing(published, forged, archive):
    stream = io.BytesIO()
    if isinstance(archive, bytes):
        stream.write(archive)
    else:
        with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
            archive(tar)
    path = relabelled(published, forged, lambda _: stream.getvalue(), names="workspace.tar.gz")
    code, report = verify(published, "--packages", "a", file=path)
    assert (code, report["verdicts"]["confirmed"]) == (0, 0)
    assert {"damaged" in left["reason"] for left in report["verdicts"]["not_recomputed"]} == {True}


def entry(name, data, **fields):
    found = tarfile.TarInfo(name)
    found.size = len(data)
    for key, value in fields.items():
        setattr(found, key, value)
    return found, io.BytesIO(data)


def manifest(tar):
    tar.addfile(*entry("workspace.json", b'{"schema": "benchcube.workspace.v1", "deleted": []}'))
    return tar


@pytest.fixture
def keys(tmp_path):
    """Two pairs of keys: PEM, and as OpenSSH writes them."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    def write(name, private_format, public_format, encoding, public_encoding):
        key = Ed25519PrivateKey.generate()
        (tmp_path / name).write_bytes(key.private_bytes(encoding, private_format, form.NoEncryption()))
        (tmp_path / f"{name}.pub").write_bytes(key.public_key().public_bytes(public_encoding, public_format))
        return tmp_path / name, tmp_path / f"{name}.pub"

    pem, ssh = form.Encoding.PEM, form.Encoding.OpenSSH
    return (
        write("pem", form.PrivateFormat.PKCS8, form.PublicFormat.SubjectPublicKeyInfo, pem, pem),
        write("ssh", form.PrivateFormat.OpenSSH, form.PublicFormat.OpenSSH, pem, ssh),
    )


@pytest.mark.parametrize("kind", [0, 1])
def test_a_signature_is_accepted_with_its_own_key_only(make_finished, exported, keys, kind, tmp_path):
    private, public = keys[kind]
    exported(make_finished(), sign=signer(private))
    assert verify(tmp_path, "--key", public)[0] == 0
    code, report = verify(tmp_path, "--key", keys[1 - kind][1])
    assert code == 1
    assert "signed with another key" in report["problems"][0]["message"]


def test_a_claim_that_was_changed_after_signing_breaks_the_signature(make_finished, exported, keys, tmp_path):
    path = exported(make_finished(), sign=signer(keys[0][0]))
    board = open_board(path).board
    assert signature_problem(board, None) is None
    changed = replace(board, jobs=(replace(board.jobs[0], model="m-2"),))
    assert "changed after it was signed" in signature_problem(changed, None)


def test_a_file_that_is_not_signed_is_refused_where_a_key_is_demanded(make_finished, exported, keys, tmp_path):
    exported(make_finished())
    code, report = verify(tmp_path, "--key", keys[0][1])
    assert (code, report["problems"][0]["message"]) == (1, "it is not signed")


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_is_not_a_key_is_wrong_usage(make_finished, text, tmp_path):
    make_finished()
    (tmp_path / "key").write_text(text)
    done = bench("leaderboard", "export", "job", "-o", "b.zip", "--sign", "key", cwd=tmp_path)
    assert done.returncode == 2
    assert "key cannot be used as a key: it is not a private key." in done.stderr


def test_without_the_extra_a_sentence_says_how_to_install_it(make_finished, tmp_path, monkeypatch):
    make_finished()
    (tmp_path / "key").write_text("x")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    done = bench("leaderboard", "export", "job", "-o", "b.zip", "--sign", "key", cwd=tmp_path)
    assert (done.returncode, "[sign]" in done.stderr) == (2, True)
    assert not (tmp_path / "b.zip").exists()


def test_commands_refuse_wrong_usage(make_finished, exported, tmp_path):
    exported(make_finished())
    assert bench("leaderboard", "export", "job", "-o", "board.zip", cwd=tmp_path).returncode == 2
    assert bench("leaderboard", "export", "none", "-o", "b.zip", cwd=tmp_path).returncode == 2
    assert bench("leaderboard", "export", "job", "-o", "x/y/b.zip", cwd=tmp_path).returncode == 2
    assert bench("leaderboard", "verify", "missing.zip", cwd=tmp_path).returncode == 2
    (tmp_path / "text.zip").write_text("PK")
    assert bench("leaderboard", "verify", "text.zip", cwd=tmp_path).returncode == 1
