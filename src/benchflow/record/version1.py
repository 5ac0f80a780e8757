"""Documents of version 0.1 (`benchcube.result.v1`, `benchcube.job.v1`) as documents of today.

For display only: such a job is read unchanged and never written. Its keys hash different content than today's, so
it cannot be resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchflow.rewards.numbers import shown

RESULT_V1: Final = "benchcube.result.v1"
JOB_V1: Final = "benchcube.job.v1"
_OPT_OUTS: Final = (
    ("verifier.hardening.keep_processes", "services"),
    ("verifier.hardening.keep_system_changes", "system"),
)


def upgraded_result(document: Mapping[str, Any], current: str) -> dict[str, Any]:
    """A result of version 1; raises `ValueError` for any other, with the schema of today, `current`."""
    if document.get("schema") != RESULT_V1:
        raise _unknown(document, current, RESULT_V1)
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
    except KeyError as error:
        raise ValueError(f"it is not a complete {RESULT_V1} document: the key {error} is missing") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"it is not a {RESULT_V1} document: a part is not an object") from error


def upgraded_job(document: Mapping[str, Any], current: str) -> dict[str, Any]:
    """A job of version 1; raises `ValueError` for any other, with the schema of today, `current`."""
    if document.get("schema") != JOB_V1:
        raise _unknown(document, current, JOB_V1)
    return {"planned": 0, "created_at": "", **document}


def _unknown(document: Mapping[str, Any], *known: str) -> ValueError:
    expected = f"it must be {' or '.join(known)}"
    if "schema" not in document:
        return ValueError(f"the key 'schema' is missing; {expected}")
    return ValueError(f"schema is {shown(document['schema'])}; {expected}")


def _verifier(part: Mapping[str, Any]) -> dict[str, Any]:
    opt_outs = part.get("opt_outs", [])
    declared = next((rung for name, rung in _OPT_OUTS if name in opt_outs), None)
    rung = "separate" if part["isolation"] == "separate" else declared or "shared"
    isolation = {"rung": rung, "chosen_by": "default" if rung == "shared" else "declared", "proof": None}
    known = {"name": "", "opt_outs": [], "not_carried_over": {"total": 0, "changes": []}}
    return {**known, **part, "isolation": isolation}


def _rescore(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"package_digest": None, **part, "pass_number": part.get("pass")}
