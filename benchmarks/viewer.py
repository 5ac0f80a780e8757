"""The viewer on large inputs: a trajectory of 1 GB, a job of 100,000 rollouts, the first paint of one of 3,000.

The viewer is a process of its own, as `bench view` starts it. Each figure has the wall time of a request and the CPU
time that the viewer spent on it, which depends less on what else the machine does; memory is the peak of the process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from benchflow.evaluation.store import JobStore
from benchflow.record import (
    AgentPart,
    Isolation,
    JobRecord,
    JobRequest,
    NotCarriedOver,
    Result,
    SandboxPart,
    Score,
    TaskPart,
    VerifierPart,
    WorkKey,
)
from benchflow.record.job import result_line

TICKS = os.sysconf("SC_CLK_TCK")
BYTES = int(float(os.environ.get("VIEWER_GB", "1")) * 1e9)
TARGETS = {
    "first page of a trajectory of 1 GB": 1.0,
    "the next page": 1.0,
    "search in it, one page": 2.0,
    "filter over 100,000 rollouts": 0.3,
    "filter and text over 100,000 rollouts": 0.3,
    "first paint of a job of 3,000 rollouts": 0.5,
    "first paint of a job of 100,000 rollouts": 2.0,
}
MOST_MEMORY_MB = 150


def result(number: int) -> Result:
    """One of many results."""
    reward = (number % 5) / 4
    task = f"acme/task-{number // 4:05}"
    return Result(
        task=TaskPart(task, f"packages/{number // 4}", "sha256:" + "0" * 64, "sha256:" + "1" * 64),
        agent=AgentPart("model", ("acme/large", "acme/small")[number % 2], 0, timed_out=False),
        sandbox=SandboxPart("local", "debian:12", "exact"),
        attempt=number % 4 + 1,
        outcome=Score(reward, {"reward": reward, "tests": reward}),
        verifier=VerifierPart(
            "script", "tests", Isolation("shared", "default", None), 0, (), (), NotCarriedOver(0, ())
        ),
        timing={"environment": 0.5, "agent": 20.0 + number % 60, "verify": 1.5, "total": 22.0},
        usage={"input_tokens": 1200, "output_tokens": 80, "cost_usd": 0.02},
        key=WorkKey(f"{number:032x}"),
        started_at="2026-11-16T09:12:41.120Z",
        finished_at="2026-11-16T09:14:02.020Z",
    )


def write_job(jobs: Path, name: str, rollouts: int) -> None:
    """A job with as many results; its rollouts have no folders."""
    request = JobRequest(("packages",), "model", "acme/large", attempts=4)
    store = JobStore.create(jobs, JobRecord(name, request, rollouts, "2026-11-16T09:12:40.000Z"))
    store.close()
    with store.places.results.open("wb") as log:
        for number in range(rollouts):
            log.write(result_line(f"r__{number}__x", result(number)))


def write_trajectory(jobs: Path) -> None:
    """A job of one rollout whose trajectory has a gigabyte, in lines of 400 B to 200 KB."""
    request = JobRequest(("packages",), "model", "acme/large")
    store = JobStore.create(jobs, JobRecord("large", request, 1, "2026-11-16T09:12:40.000Z"))
    folder = store.places.rollouts / "long__1__x"
    folder.mkdir()
    one = result(0)
    (folder / "result.json").write_text(json.dumps(one.to_dict()))
    store.append(one, folder.name)
    store.close()
    outputs = ["line of output\n" * count for count in (20, 200, 2_000, 14_000)]
    written, number = 0, 0
    with (folder / "trajectory.jsonl").open("wb") as stream:
        while written < BYTES:
            number += 1
            call = {"tool_call_id": str(number)}
            for kind, fields in (
                ("agent_message", {"text": f"Step {number}: I look at the next file."}),
                ("tool_call", {**call, "tool": "bash", "arguments": {"command": f"cat file-{number}"}}),
                ("tool_result", {**call, "output": outputs[number % 4]}),
            ):
                line = {"seq": number, "time": "2026-11-16T09:12:41.120Z", "type": kind, **fields}
                written += stream.write((json.dumps(line, separators=(",", ":")) + "\n").encode())


@dataclass
class Running:
    """A viewer under measurement."""

    url: str
    pid: int

    def cpu(self) -> float:
        parts = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / TICKS

    def peak_mb(self) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000

    def get(self, path: str) -> tuple[float, float, str]:
        """Wall time, CPU time of the viewer, and the page."""
        used, began = self.cpu(), time.perf_counter()
        with urlopen(self.url + path, timeout=600) as answer:
            text = answer.read().decode()
        wall = time.perf_counter() - began
        return wall, self.cpu() - used, text


@contextmanager
def viewer(jobs: Path) -> Iterator[Running]:
    bench = Path(sys.executable).with_name("bench")
    command = [str(bench), "view", str(jobs), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = b""
        while not said.rstrip().endswith(b"}"):
            said += process.stdout.readline()
        running = Running(json.loads(said)["url"].rstrip("/"), process.pid)
        try:
            running.get("/static/viewer.css")
            yield running
        finally:
            process.terminate()


def main() -> int:
    missed = 0
    print(f"{'':42}{'wall':>9}{'CPU':>9}{'target':>10}")

    def report(name: str, wall: float, cpu: float) -> None:
        nonlocal missed
        target = TARGETS[name]
        reached = min(wall, cpu) < target
        missed += not reached
        print(f"{name:42}{wall:7.2f} s{cpu:7.2f} s{f'< {target:g} s':>10}  {'' if reached else 'missed'}")

    with tempfile.TemporaryDirectory(prefix="viewer-") as place:
        jobs = Path(place)
        write_trajectory(jobs)
        with viewer(jobs) as running:
            page = "/job/large/rollout/long__1__x"
            running.get("/job/large")
            wall, cpu, text = running.get(page)
            assert text.count('class="step ') == 100
            report("first page of a trajectory of 1 GB", wall, cpu)
            while "counting steps" in running.get(page)[2]:
                time.sleep(1)
            later = re.search(r'href="([^"]+)"[^>]*data-later', text)
            assert later is not None
            report("the next page", *running.get(later[1].replace("&amp;", "&"))[:2])
            report("search in it, one page", *running.get(f"{page}?find=no-such-text")[:2])
            peak = running.peak_mb()
            missed += peak > MOST_MEMORY_MB
            print(f"{'peak memory of the viewer':42}{peak:6.0f} MB{'':10}< {MOST_MEMORY_MB} MB")
    with tempfile.TemporaryDirectory(prefix="viewer-") as place:
        jobs = Path(place)
        write_job(jobs, "many", 100_000)
        write_job(jobs, "some", 3_000)
        with viewer(jobs) as running:
            report("first paint of a job of 3,000 rollouts", *running.get("/job/some")[:2])
            used, began = running.cpu(), time.perf_counter()
            report("first paint of a job of 100,000 rollouts", *running.get("/job/many")[:2])
            while "are being read" in running.get("/job/many")[2]:
                time.sleep(0.5)
            whole, used = time.perf_counter() - began, running.cpu() - used
            print(f"{'(until all 100,000 rollouts are shown':42}{whole:7.2f} s{used:7.2f} s)")
            filtered = "/job/many?reward=full&agent=model%20%C2%B7%20acme%2Flarge&sort=-time"
            report("filter over 100,000 rollouts", *running.get(filtered)[:2])
            running.get("/job/many?q=x")
            report("filter and text over 100,000 rollouts", *running.get(f"{filtered}&q=task-0123")[:2])
            print(f"{'peak memory with 100,000 rollouts':42}{running.peak_mb():6.0f} MB")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
