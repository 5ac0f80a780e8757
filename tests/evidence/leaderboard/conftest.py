"""Finished jobs as they are on disk, leaderboard files of them, and files that somebody has changed."""

import io
import json
import tarfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from benchflow.evidence.leaderboard.board_claims import claims
from benchflow.evidence.leaderboard.board_export import export_board
from benchflow.evidence.leaderboard.board_file import open_board, write_board
from benchflow.evidence.leaderboard.published_job import parse_job
from benchflow.record import (
    AgentPart,
    Isolation,
    Job,
    JobRequest,
    NotCarriedOver,
    Notes,
    VerifierPart,
    Workspace,
    work_key,
    write_document,
)
from benchflow.record.leaderboard_index import ListedFile

AT = "2026-01-01T00:00:00.500Z"
"""A moment of the rollouts that `make_result` makes."""
VERIFIED = VerifierPart("script", "script", Isolation("shared", "default", None), 0, (), (), NotCarriedOver(0, ()))


def archive(text: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        entry = tarfile.TarInfo("files/app/answer.txt")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text.encode()))
    return stream.getvalue()


@pytest.fixture
def make_finished(tmp_path, make_result, make_job):
    """Makes a job with a folder for each rollout. Rewards are by task, one for each attempt; None is unscored."""

    def make(
        name="job", rewards=None, *, agent="model", model="m-1", digest="sha256:0", planned=None, more=(), **request
    ):
        rewards = {"t/a": [1.0, 0.0], "t/b": [0.5, 0.5]} if rewards is None else rewards
        attempts = max(map(len, rewards.values()))
        settings = JobRequest(("tasks",), agent, model, attempts, **request).settings().digest()
        results = []
        for task, values in rewards.items():
            for attempt, reward in enumerate(values, 1):
                made = make_result(
                    task, reward, digest=digest, attempt=attempt, path=f"tasks/{task}", verifier=VERIFIED
                )
                part = AgentPart(agent, model, exit_code=0, timed_out=False)
                notes = Notes(workspace=Workspace(kept=True, entries=1, bytes=5))
                key = work_key(made.task.id, settings, attempt)
                results.append(replace(made, agent=part, key=key, notes=notes))
        results += [change(results) for change in more]
        wanted = {"agent": agent, "model": model, "attempts": attempts, "directory": str(tmp_path), **request}
        job = make_job(tmp_path / "jobs", name, results, planned=planned or attempts * len(rewards), **wanted)
        for number, result in enumerate(results):
            write_rollout(job.places.rollout(f"r{number}"), result, f"{name} {number}")
        return Job(job.folder)

    return make


def write_rollout(places, result, text):
    places.verifier.mkdir(parents=True)
    write_document(places.result, result.to_dict())
    events = [{"seq": 1, "time": AT, "type": "user_message", "text": text}, {"seq": 2, "time": AT, "type": "usage"}]
    places.trajectory.write_text("".join(json.dumps(event) + "\n" for event in events))
    places.workspace.write_bytes(archive(text))
    if result.reward is not None:
        (places.verifier / "reward.txt").write_text(str(result.reward))
        line = {"ts": "t", "type": "terminal", "source": "verifier", "value": result.reward, "tag": "reward"}
        rest = {"space": "output", "granularity": "terminal", "meta": {}}
        places.rewards.write_text(json.dumps({**line, **rest}) + "\n")


@pytest.fixture
def exported(tmp_path):
    """The file of jobs, which must be fit for one."""

    def export(*jobs, name="board.zip", sign=None) -> Path:
        checked = export_board(jobs, tmp_path / name, sign)
        assert [str(problem) for problem in checked.problems] == []
        return tmp_path / name

    return export


@pytest.fixture
def forged(tmp_path):
    """Writes a file again with other parts, all hashes and claims computed anew; `claim` changes them after that."""

    def forge(path, parts=None, *, claim=lambda board: board, gone=()) -> Path:
        file = open_board(path)
        contents = {name: file.text(name) for name in file.places if not any(part in name for part in gone)}
        contents = dict(sorted({**contents, **(parts or {})}.items()))
        listed = [ListedFile(name, len(data), _sha256(data)) for name, data in contents.items()]
        digests = {job.name: job.settings_digest for job in file.board.jobs}
        jobs = [
            parse_job(contents[f"jobs/{name}/job.json"], contents[f"jobs/{name}/results.jsonl"], digest)
            for name, digest in digests.items()
        ]
        place = tmp_path / "forged.zip"
        write_board(place, claim(claims(jobs, listed)), list(contents.values()))
        return place

    return forge


def _sha256(data):
    return sha256(data).hexdigest()


@pytest.fixture
def text_of():
    """A part of a file as text."""
    return lambda path, name: open_board(path).text(name).decode()
