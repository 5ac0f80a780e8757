"""Documents of version 0.1 (`benchcube.result.v1`, `benchcube.job.v1`) as documents of today.

For display only: such a job is read unchanged and never written. Its keys hash different content than today's, so
it cannot be gone on with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

RESULT_V1: Final = "benchcube.result.v1"
JOB_V1: Final = "benchcube.job.v1"
_OPT_OUTS: Final = (
    ("verifier.hardening.keep_processes", "services"),
    ("verifier.hardening.keep_system_changes", "system"),
)


def upgraded_result(document: Mapping[str, Any]) -> dict[str, Any]:
    """A result of version 1; raises `ValueError` for any other."""
    if document.get("schema") != RESULT_V1:
        raise ValueError(f"schema is {document.get('schema')!r}")
    try:
        upgraded = dict(document)
        digest = document["task"]["digest"]
        upgraded["task"] = {**document["task"], "content_digest": digest}
        if document["verifier"] is not None:
            upgraded["verifier"] = _verifier(document["verifier"])
        for part in ("steps", "branches"):
            if part in document:
                upgraded[part] = [{"reward": None, "rewards": {}, "error": None, **item} for item in document[part]]
        if "rescore" in document:
            upgraded["rescore"] = _rescore(document["rescore"])
        return upgraded
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a complete {RESULT_V1} document: {error}") from error


def upgraded_job(document: Mapping[str, Any]) -> dict[str, Any]:
    """A job of version 1; raises `ValueError` for any other."""
    if document.get("schema") != JOB_V1:
        raise ValueError(f"schema is {document.get('schema')!r}")
    return {"planned": 0, "created_at": "", **document}


def _verifier(part: Mapping[str, Any]) -> dict[str, Any]:
    opt_outs = part.get("opt_outs", [])
    declared = next((rung for name, rung in _OPT_OUTS if name in opt_outs), None)
    rung = "separate" if part["isolation"] == "separate" else declared or "shared"
    isolation = {"rung": rung, "chosen_by": "default" if rung == "shared" else "declared", "proof": None}
    known = {"name": "", "opt_outs": [], "not_carried_over": {"total": 0, "changes": []}}
    return {**known, **part, "isolation": isolation}


def _rescore(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"package_digest": None, **part, "pass_number": part.get("pass")}
