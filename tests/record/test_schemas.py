"""What ships as a schema is what the types say."""

import json
from dataclasses import replace

import jsonschema
import pytest

from benchflow.evaluation.summary import job_summary
from benchflow.record import ErrorRecord, Job, JobRecord, JobRequest, Summary, schema
from benchflow.record.codec import plain
from benchflow.record.schemas import DOCUMENTS, generated
from benchflow.record.trajectory import reward_lines
from benchflow.rewards import Scored
from written_documents import check_fits


@pytest.mark.parametrize("document", list(DOCUMENTS))
def test_the_shipped_schema_is_the_generated_one(document):
    assert schema(document) == json.loads(json.dumps(generated(document))), "run: python -m benchflow.record.schemas"
    jsonschema.Draft202012Validator.check_schema(schema(document))


def test_job_documents_and_reward_lines_fit_their_schemas():
    job = JobRecord("job", JobRequest(("tasks",), "oracle", max_cost_usd=0.5), 3, "now")
    check_fits(job.to_dict(), "job")
    assert JobRecord.from_dict(json.loads(json.dumps(job.to_dict()))) == job
    for line in reward_lines(Scored(0.5, metrics={"speed": 1.0}), step="one"):
        check_fits(plain(line), "reward")


@pytest.mark.parametrize(
    "change", [{"status": "unscored"}, {"reward": None}, {"error": {"category": "x"}}, {"sandbox": {"name": "local"}}]
)
def test_a_document_that_contradicts_itself_does_not_fit(make_result, change):
    with pytest.raises(jsonschema.ValidationError):
        check_fits({**make_result().to_dict(), **change}, "result")


def test_a_summary_fits_its_schema_and_survives_json(make_result, make_job, tmp_path):
    results = [
        make_result("a", 0.5),
        make_result("b", error=ErrorRecord("judge", "timeout", "verify", "away")),
        make_result("c", 1.0, key="gone"),
    ]
    job = make_job(tmp_path, results=results)
    job.write_plan(replace(job.record, superseded=("gone",)))
    with job.places.results.open("ab") as stream:
        stream.write(b"{}\n")
    summary = job_summary(Job.find(tmp_path, "job"))
    document = json.loads(json.dumps(summary.to_dict()))
    check_fits(document, "summary")
    assert Summary.from_dict(document) == summary
    assert (summary.superseded, [line.number for line in summary.damaged]) == (1, [4])
    for change in ({"total": "3"}, {"mean_reward": 0.5}, {"results": [{}]}, {"damaged_lines": [4]}):
        with pytest.raises(jsonschema.ValidationError):
            check_fits({**document, **change}, "summary")
        with pytest.raises(ValueError, match=r"\w"):
            Summary.from_dict({**document, **change})
