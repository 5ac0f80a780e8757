"""Kept work that is scored again on a node: its folder on the way there, and the result of a try that failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from benchflow.evaluation.scaled.fleet import Host
from benchflow.evaluation.scaled.folder_travel import CHUNK_BYTES, packed
from benchflow.evaluation.scaled.orders import FolderStream
from benchflow.files.scratch import scratch
from benchflow.record import RescoreNote, Result, outcome_of
from benchflow.rewards import Unscored
from benchflow.task.package import VERIFIER_PART, TaskPackage, package_parts


async def send_kept(host: Host, order: str, folder: Path) -> FolderStream:
    """Send the folder of a rollout to a node; what has to go with the order."""
    with scratch("kept-") as place:
        stream = await anyio.to_thread.run_sync(packed, folder, place / "stream")
        if stream.data is not None:
            return stream
        with (place / "stream").open("rb", buffering=0) as source:
            offset = 0
            while part := source.read(CHUNK_BYTES):
                await host.call("receive", order, offset, part)
                offset += len(part)
    return stream


def not_scored_again(package: TaskPackage, result: Result, verdict: Unscored) -> Result:
    """The result of a try at scoring again that the node did not finish: it is still the judge that is missing."""
    note = RescoreNote(package_parts(package)[VERIFIER_PART], package.digest)
    return replace(result, outcome=outcome_of(verdict), notes=replace(result.notes, rescore=note))
