"""`leaderboard-submission`: an external scorer, as a command in verifier scope or as a URL, judges a sealed bundle."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import anyio.to_thread

from benchflow.errors import PackageError, VerifierFailure
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.rewards import Verdict
from benchflow.sandbox.protocol import ExecResult
from benchflow.task.verifier.declared_strategies import LeaderboardStrategy
from benchflow.verifier.boxes import timed_out
from benchflow.verifier.inputs import gather
from benchflow.verifier.scope import LOGS, VERIFIER
from benchflow.verifier.strategies.script import finish
from benchflow.verifier.strategy_run import Run
from benchflow.verifier.submission import BUNDLE, MAX_RECORD, RECORD, judge_record, pending, write_bundle

INSIDE: Final = "/logs/submission"
_TEMPFAIL: Final = 75
"""The exit code with which a command reports that its answer comes later."""
_LATER: Final = (202, 408, 425, 429, 500, 502, 503, 504)


class _NoAnswer(Exception):
    """The scorer could not be called, or answers later."""


async def score(run: Run) -> Verdict:
    """Seal the declared inputs, submit them, and keep the answer; one that comes later leaves the result pending."""
    strategy = run.strategy
    if not isinstance(strategy, LeaderboardStrategy):
        raise TypeError(f"{run.name} is not a submission")
    inputs = await gather(run, strategy.inputs)
    view = run.scope.view
    about = {
        "task": {"name": view.name, "digest": view.digest, "content_digest": view.content_digest},
        "step": run.scope.step,
        "strategy": run.name,
    }
    manifest = await anyio.to_thread.run_sync(write_bundle, run.output, inputs, about)
    remote = strategy.url is not None
    try:
        if remote:
            record = await anyio.to_thread.run_sync(_post, run, strategy, manifest)
        else:
            record = await _command(run, strategy)
        return judge_record(run.output, record, manifest, run.scope.reward_range)
    except _NoAnswer as reason:
        return pending(str(reason))
    except VerifierFailure as error:
        raise _of_server(error) if remote else _of_command(error) from error


def _of_server(error: VerifierFailure) -> VerifierFailure:
    """The failure of a remote scorer. Its code differs from those of commands: without a submission the server is not
    called, so a comparison with the pristine environment cannot show whose failure it is."""
    if error.code == "scorer-refused":
        return error
    return VerifierFailure(str(error), code="scorer-unusable", path=error.path)


def _of_command(error: VerifierFailure) -> VerifierFailure:
    """The failure of a command, which runs beside the work and may fail because of it."""
    return VerifierFailure(str(error), code="scorer-failed") if error.code == "scorer-refused" else error


async def _command(run: Run, strategy: LeaderboardStrategy) -> object:
    """Run the scorer beside the verifier's files, with the bundle; its record is a file or its output."""
    timeout = strategy.timeout_sec or run.scope.config.timeout_sec
    async with run.box() as box:
        await box.sandbox.upload(run.output / BUNDLE, INSIDE, owner=box.user)
        env = {"BENCHFLOW_SUBMISSION": INSIDE, "BENCHFLOW_RECORD": f"{LOGS}/{RECORD}", **_secret(run, strategy)}
        result = await box.run(strategy.command or "", cwd=VERIFIER, timeout=timeout, env=env)
        await finish(run, result)
        if result.timed_out:
            raise timed_out(timeout)
        await box.collect(run.output)
    return _answer(run, result)


def _answer(run: Run, result: ExecResult) -> object:
    if result.exit_code == _TEMPFAIL:
        raise _NoAnswer("the scorer's command reported that its answer comes later")
    if result.exit_code:
        message = f"The scorer's command exited with code {result.exit_code}."
        raise VerifierFailure(message, code="scorer-failed")
    file: Path = run.output / RECORD
    data = file.read_bytes() if file.is_file() and not file.is_symlink() else result.stdout.strip()
    if not data:
        raise VerifierFailure("The scorer's command exited with code 0 and gave no answer.", code="scorer-failed")
    return _parsed(data)


def _parsed(data: bytes) -> object:
    try:
        return parse_json(data[: MAX_RECORD + 1])
    except StrictJSONError as error:
        raise VerifierFailure(f"The scorer's answer {error}.", code="record-invalid") from error


def _post(run: Run, strategy: LeaderboardStrategy, manifest: dict[str, Any]) -> object:
    """Send manifest and files as one JSON document to the scorer's address."""
    url = strategy.url or ""
    if not url.startswith(("https://", "http://")):
        raise PackageError(
            f"The scorer's URL must begin with http:// or https://, not {url!r}.", code="invalid-url", path="url"
        )
    files = {
        entry["file"]: base64.b64encode((run.output / BUNDLE / entry["file"]).read_bytes()).decode()
        for entry in manifest["files"]
    }
    headers = {"Content-Type": "application/json"}
    for value in _secret(run, strategy).values():
        headers["Authorization"] = f"Bearer {value}"
    body = json.dumps({"manifest": manifest, "files": files}).encode()
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - checked above
    timeout = strategy.timeout_sec or run.scope.config.timeout_sec
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - checked above
            data = answer.read(MAX_RECORD + 1)
            status = answer.status
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _LATER:
            raise _NoAnswer(f"its server replied with {error.code}") from error
        raise VerifierFailure(f"The scorer refused the submission: {error.code}.", code="scorer-refused") from error
    except OSError as error:
        raise _NoAnswer(f"it cannot be reached ({error})") from error
    if status in _LATER and not data.strip():
        raise _NoAnswer("it accepted the submission")
    return _parsed(data)


def _secret(run: Run, strategy: LeaderboardStrategy) -> dict[str, str]:
    """The declared secret of the scorer, by the name of its variable."""
    if strategy.secret is None:
        return {}
    declared = next((item for item in run.scope.view.namespace.secrets if item.name == strategy.secret), None)
    name = (declared.env or declared.name) if declared is not None else strategy.secret
    value = run.variables.values.get(name)
    if not value:
        message = f"The scorer needs the secret {strategy.secret!r}, which is not declared for the verifier."
        raise PackageError(message, code="missing-secret", path=f"verifier.strategies.{run.name}.secret")
    return {name: value}
