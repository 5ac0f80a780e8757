"""A submission to an external scorer: a folder of files sealed by their hashes, and the record of the scorer.

    submission/files/…        what is submitted
    submission/manifest.json  task, strategy, every file with its SHA-256, and the seal over all of that
    leaderboard-record.json   the scorer's answer

The bundle is on disk before the scorer is called, so an answer can come later: `complete_submission`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchflow.errors import InfrastructureFailure, VerifierFailure
from benchflow.files.atomic import sync_folder, write_atomic
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.rewards import UNIT, RewardRange, Scored, Unscored, Verdict, settle, write_reward
from benchflow.verifier.inputs import Input

BUNDLE: Final = "submission"
MANIFEST: Final = "manifest.json"
RECORD: Final = "leaderboard-record.json"
SCHEMA: Final = "benchcube.submission.v1"
MAX_RECORD: Final = 1 << 20
_PENDING: Final = ("pending", "queued", "running", "submitted")


def write_bundle(folder: Path, inputs: list[Input], about: Mapping[str, Any]) -> dict[str, Any]:
    """Write a sealed bundle to `folder/submission` and flush it to disk; return its manifest."""
    bundle = folder / BUNDLE
    (bundle / "files").mkdir(parents=True)
    files = []
    for number, item in enumerate(inputs):
        name = f"files/{number:03d}-{item.path.rpartition('/')[2] or 'file'}"
        write_atomic(bundle / name, item.data)
        files.append(
            {"path": item.path, "file": name, "size": len(item.data), "sha256": hashlib.sha256(item.data).hexdigest()}
        )
    manifest: dict[str, Any] = {"schema": SCHEMA, **about, "files": files}
    manifest["seal"] = seal_of(manifest)
    write_atomic(bundle / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    sync_folder(folder)
    return manifest


def seal_of(manifest: Mapping[str, Any]) -> str:
    """The hash over everything in a manifest except the seal itself."""
    contents = {key: value for key, value in manifest.items() if key != "seal"}
    return "sha256:" + hashlib.sha256(json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_bundle(folder: Path) -> dict[str, Any]:
    """The manifest of `folder/submission`, after comparing every hash; raises `VerifierFailure` (`seal-broken`)."""
    bundle = folder / BUNDLE
    try:
        manifest = parse_json(read_regular(bundle / MANIFEST, max_bytes=16 << 20))
        if not isinstance(manifest, dict) or manifest.get("seal") != seal_of(manifest):
            raise _broken("the seal does not match the manifest")
        for entry in manifest["files"]:
            data = read_regular(bundle / entry["file"], max_bytes=1 << 30)
            if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                raise _broken(f"{entry['file']} was changed")
    except (OSError, RefusedFileError, StrictJSONError, KeyError, TypeError) as error:
        raise _broken(str(error)) from error
    return manifest


def _broken(why: str) -> VerifierFailure:
    return VerifierFailure(f"The submission was changed after it was sealed: {why}.", code="seal-broken")


def pending(reason: str) -> Unscored:
    """The result while there is no answer yet."""
    return Unscored("verifier", "verify", "pending", f"The external scorer has not answered yet: {reason}")


def judge_record(
    folder: Path, record: object, manifest: Mapping[str, Any], reward_range: RewardRange = UNIT
) -> Verdict:
    """Store the scorer's answer beside the bundle and read its reward.

    A record is an object with `reward` or `metrics` and `aggregate`, as `reward.json` has them, below `result` or at
    its top; one whose `status` is not final leaves the result pending, one for another seal is refused.
    """
    if not isinstance(record, Mapping):
        raise VerifierFailure("The scorer's answer must be a JSON object.", code="record-invalid")
    if record.get("seal", manifest["seal"]) != manifest["seal"]:
        raise VerifierFailure("The scorer's answer is for another submission.", code="record-invalid", path="seal")
    write_atomic(folder / RECORD, json.dumps(dict(record), indent=2) + "\n")
    status = str(record.get("status", "scored")).lower()
    if status in _PENDING:
        return pending(f"its status is {status!r}")
    if status not in ("scored", "ok", "done", "completed"):
        message = f"The scorer reported {status!r}: {record.get('message') or record.get('error') or 'no reason given'}"
        raise VerifierFailure(message, code="scorer-refused")
    result = record.get("result", record)
    known = ("reward", "metrics", "aggregate", "rubric", "metadata", "reason")
    document = {key: result[key] for key in known if key in result} if isinstance(result, Mapping) else result
    scored = settle(document, None, reward_range=reward_range)
    metadata = {"source": "leaderboard-submission", "seal": manifest["seal"], "id": record.get("id")}
    return Scored(
        scored.reward,
        metrics=scored.metrics,
        items=scored.items,
        document={**scored.document, "metadata": metadata},
        details={**metadata, "record": dict(record)},
    )


def complete_submission(folder: Path, record: object, reward_range: RewardRange = UNIT) -> Verdict:
    """Complete a pending verification with the scorer's record; reward files are written if there is a reward.

    Raises `VerifierFailure` if the bundle was changed or the record is invalid, and `InfrastructureFailure` if there
    is no bundle.
    """
    if not (folder / BUNDLE).is_dir():
        raise InfrastructureFailure(f"{folder} contains no submission.", code="submission-missing")
    verdict = judge_record(folder, record, read_bundle(folder), reward_range)
    if isinstance(verdict, Scored):
        write_reward(folder, verdict)
    return verdict
