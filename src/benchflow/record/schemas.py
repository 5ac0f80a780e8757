"""JSON schemas of records, generated from the types; the shipped ones are beside this module.

`python -m benchflow.record.schemas` rewrites them; a test compares the shipped ones with the types.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_type_hints

from benchflow.record.arena_record import ArenaMessage, RoleToolCall
from benchflow.record.evidence import PROOF_REPORT_SCHEMA, ProofReport
from benchflow.record.identity import Shard
from benchflow.record.job import JOB_SCHEMA, JobRecord
from benchflow.record.leaderboard_index import LEADERBOARD_SCHEMA, Leaderboard
from benchflow.record.model_calls import ModelCall
from benchflow.record.outcome import Outcome
from benchflow.record.result import RESULT_SCHEMA, BranchRecord, Result, StepRecord
from benchflow.record.summaries.job_nodes import NODES_SCHEMA, JobNodes
from benchflow.record.summaries.job_summary import SUMMARY_SCHEMA, Statistics, Summary
from benchflow.record.trajectory import Event, RewardLine

Document = Literal[
    "result",
    "job",
    "summary",
    "event",
    "reward",
    "model-call",
    "arena-message",
    "arena-tool-call",
    "proof-report",
    "leaderboard",
    "nodes",
]
DOCUMENTS: Final[dict[Document, tuple[Any, str | None]]] = {
    "result": (Result, RESULT_SCHEMA),
    "job": (JobRecord, JOB_SCHEMA),
    "summary": (Summary, SUMMARY_SCHEMA),
    "event": (Event, None),
    "reward": (RewardLine, None),
    "model-call": (ModelCall, None),
    "arena-message": (ArenaMessage, None),
    "arena-tool-call": (RoleToolCall, None),
    "proof-report": (ProofReport, PROOF_REPORT_SCHEMA),
    "leaderboard": (Leaderboard, LEADERBOARD_SCHEMA),
    "nodes": (JobNodes, NODES_SCHEMA),
}
"""`result.json`, `job.json`, `summary.json`, lines of `trajectory.jsonl`, `rewards.jsonl`, `model_calls.jsonl`,
`a2a/messages.jsonl` and `a2a/tool_calls.jsonl`, `proof-report.json`, `leaderboard.json`, `nodes.json`."""
_REWARDS: Final = {"type": "object", "additionalProperties": {"type": "number"}}


def schema_file(document: Document) -> Path:
    return Path(__file__).with_name(f"{document}.schema.json")


def schema(document: Document) -> dict[str, Any]:
    """The schema that ships."""
    found: dict[str, Any] = json.loads(schema_file(document).read_bytes())
    return found


def generated(document: Document) -> dict[str, Any]:
    """The schema of the types."""
    from pydantic import TypeAdapter

    kind, name = DOCUMENTS[document]
    if kind is Summary:
        made = _summary()
    else:
        made = _event() if kind is Event else TypeAdapter(kind).json_schema(mode="serialization")
    shared = made.get("$defs", {})
    for nested in (StepRecord, BranchRecord):
        if nested.__name__ in shared:
            _flatten(nested, shared[nested.__name__], shared)
    if is_dataclass(kind) and kind is not Summary:
        _flatten(kind, made, shared)
    if name is not None:
        made["properties"] = {"schema": {"const": name}, **made["properties"]}
        made["required"] = ["schema", *made["required"]]
    title = name or made["title"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **_shape(made)}


def _shape(made: Any) -> Any:
    """Without prose: a docstring may change without changing any document."""
    if isinstance(made, list):
        return [_shape(item) for item in made]
    if not isinstance(made, dict):
        return made
    prose = ("title", "description")
    return {key: _shape(value) for key, value in made.items() if key not in prose or isinstance(value, dict)}


def _summary() -> dict[str, Any]:
    """The statistics with what stands beside them; its results are whole documents of their own schema."""
    from pydantic import TypeAdapter

    made: dict[str, Any] = TypeAdapter(Statistics).json_schema(mode="serialization")
    line = {"type": "object", "properties": {"line": {"type": "integer"}, "reason": {"type": "string"}}}
    rollout = {"type": "object", "properties": {"rollout": {"type": "string"}}, "required": ["rollout"]}
    result = schema_file("result").name
    made["properties"] = {
        "job": {"type": "string"},
        "shard": TypeAdapter(Shard).json_schema(),
        **made["properties"],
        "superseded": {"type": "integer"},
        "damaged_lines": {"type": "array", "items": {**line, "required": ["line", "reason"]}},
        "results": {"type": "array", "items": {"allOf": [{"$ref": result}, rollout]}},
    }
    made["required"] = ["job", *made["required"], "damaged_lines", "results"]
    made["$defs"] |= {"Result": {"$id": result, **generated("result")}}
    return made


def _event() -> dict[str, Any]:
    """Of a `TypedDict`, which pydantic reads on Python 3.11 only from another library."""
    from pydantic import TypeAdapter

    properties = {name: TypeAdapter(hint).json_schema() for name, hint in get_type_hints(Event).items()}
    required = [name for name in properties if name in Event.__required_keys__]
    return {"title": "Event", "type": "object", "properties": properties, "required": required}


def _flatten(kind: Any, made: dict[str, Any], shared: dict[str, Any]) -> None:
    """Put the keys of flat fields among those of the record, as the codec writes them."""
    hints = get_type_hints(kind)
    made.setdefault("required", [])
    for field in fields(kind):
        if field.name == "upgraded":
            del made["properties"][field.name]
        if not field.metadata.get("flat"):
            continue
        del made["properties"][field.name]
        made["required"] = [name for name in made["required"] if name != field.name]
        if is_dataclass(hints[field.name]):
            inner = shared.pop(hints[field.name].__name__)
            made["properties"] |= inner["properties"]
            made["required"] += inner.get("required", [])
        else:
            made["properties"] |= _outcome_properties()
            made["required"] += ["status", "reward", "rewards", "error"]
            made["oneOf"] = list(_outcomes(of_part=hints[field.name] != Outcome))
            for unused in ("Score", "NoOutcome"):
                shared.pop(unused, None)


def _outcome_properties() -> dict[str, Any]:
    error = {"anyOf": [{"$ref": "#/$defs/ErrorRecord"}, {"type": "null"}]}
    return {"status": {"type": "string"}, "reward": {"type": ["number", "null"]}, "rewards": _REWARDS, "error": error}


def _outcomes(*, of_part: bool) -> Iterator[dict[str, Any]]:
    null = {"type": "null"}
    yield {"properties": {"status": {"const": "scored"}, "reward": {"type": "number"}, "error": null}}
    yield {"properties": {"status": {"const": "unscored"}, "reward": null, "error": {"type": "object"}}}
    if of_part:
        yield {"properties": {"status": {"enum": ["not-reached", "taken", "not-run"]}, "reward": null, "error": null}}


if __name__ == "__main__":
    for one in DOCUMENTS:
        schema_file(one).write_text(json.dumps(generated(one), indent=1) + "\n", encoding="utf-8")
