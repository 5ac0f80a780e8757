"""Reads public sets of packages, beside Harbor's own loader and benchflow 0.6.2 from the package index.

Each PATH is one set: a folder above packages; without one, the examples and their exports are read. Prints one row per
set: packages found, valid, invalid by code, crashes, folders that were not reported, what the peers say, and packages
per second. A disagreement is a package that we refuse and a peer accepts, or that Harbor refuses and we accept; all are
listed below the table, with the rule that explains them, or `ours`. The targets: no crash, none missing, none `ours`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow.task.interop.split_export import export_task_to_split_layout
from lib.side_by_side import compile_ours, peers, print_cells

EXAMPLES = Path(__file__).parents[1] / "examples" / "packages"
MARKERS = ("task.md", "task.toml")
CRASHES = frozenset({"check-failed", "internal-error"})
READINGS = {
    "alias-drift": "alias folders that differ are an error",
    "projection-drift": "files beside a task.md that say something else are an error",
    "link-escape": "links that leave the package are an error",
    "special-file": "pipes, sockets and devices are an error",
}
"""What is refused here and not by Harbor, by code."""
LENIENT = {
    r"not a valid folder": "files are demanded only of the selected strategy, and an environment may be missing",
}
"""What Harbor refuses and is accepted here, by Harbor's message."""
COMMAND = """
import contextlib, importlib.metadata, io, json, sys
(script,) = importlib.metadata.entry_points(group="console_scripts", name="bench")
main = script.load()
def accepted(path):
    sys.argv = ["bench", "tasks", "check", path]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
    except SystemExit as ended:
        return None if ended.code in (0, None) else said.getvalue()[-2000:]
    return None
print(json.dumps({path: accepted(path) for path in json.load(sys.stdin)}))
"""
"""The peer's own command line, one call per package, in one process: starting it 2,000 times would take an hour."""


@dataclass
class Set:
    """What was found out about one set."""

    name: str
    reports: list[dict[str, Any]]
    seconds: float
    missing: list[str]
    harbor: dict[str, str | None] = field(default_factory=dict)
    benchflow: dict[str, str | None] = field(default_factory=dict)

    def codes(self) -> Counter[str]:
        return Counter(code for report in self.reports for code in errors(report))

    def crashes(self) -> int:
        return sum(bool(errors(report) & CRASHES) for report in self.reports)

    def disagreements(self) -> Iterator[tuple[str, str, str]]:
        """Explanation, package and reason of each package that one accepts and the other refuses."""
        for report in self.reports:
            path, refused = report["path"], errors(report)
            if path in self.harbor and (self.harbor[path] is None) == bool(refused):
                answer = self.harbor[path]
                if answer is None:
                    known = {READINGS.get(code, "ours") for code in refused}
                    yield ("ours" if "ours" in known else min(known)), path, f"refused here: {messages(report)}"
                else:
                    yield lenient(answer), path, f"Harbor: {answer}"
            if refused and path in self.benchflow and self.benchflow[path] is None:
                yield "ours", path, f"benchflow 0.6.2 accepts it; refused here: {messages(report)}"

    def cells(self) -> list[str]:
        invalid = sum(not report["valid"] for report in self.reports)
        by_code = ", ".join(f"{code} {number:,}" for code, number in self.codes().most_common())
        return [
            self.name,
            f"{len(self.reports):,}",
            f"{len(self.reports) - invalid:,}",
            f"{invalid:,} ({by_code})" if invalid else "0",
            f"{self.crashes():,}",
            f"{len(self.missing):,}",
            accepts(self.harbor),
            accepts(self.benchflow),
            f"{sum(1 for _ in self.disagreements()):,}",
            f"{len(self.reports) / self.seconds:,.0f} /s",
        ]


def errors(report: dict[str, Any]) -> frozenset[str]:
    return frozenset(issue["code"] for issue in report["issues"] if issue["severity"] == "error")


def messages(report: dict[str, Any]) -> str:
    return "; ".join(dict.fromkeys(issue["message"] for issue in report["issues"] if issue["severity"] == "error"))


def lenient(answer: str) -> str:
    return next((reading for pattern, reading in LENIENT.items() if re.search(pattern, answer)), "ours")


def accepts(answers: dict[str, str | None]) -> str:
    if not answers:
        return "–"
    return f"{sum(answer is None for answer in answers.values()):,} of {len(answers):,}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="one set of packages")
    options.add_argument("--no-peer", action="store_true", help="check the packages only here")
    chosen = options.parse_args()
    compile_ours()
    with tempfile.TemporaryDirectory(prefix="benchcube-corpora-") as scratch:
        paths = chosen.paths or [EXAMPLES, exported(Path(scratch) / "exports")]
        sets = [examined(path, beside=not chosen.no_peer) for path in paths]
    return report(sets)


def examined(path: Path, *, beside: bool) -> Set:
    start = time.perf_counter()
    done = subprocess.run(
        [Path(sys.executable).parent / "bench", "tasks", "check", path, "--json"], check=False, stdout=subprocess.PIPE
    )
    seconds = time.perf_counter() - start
    if done.returncode not in (0, 1):
        raise SystemExit(f"bench tasks check {path} exited with code {done.returncode}")
    reports = json.loads(done.stdout)["tasks"]
    found = Set(path.name, reports, seconds, missing(path, {report["path"] for report in reports}))
    if beside:
        folders = [report["path"] for report in reports]
        try:
            found.harbor = peers.harbor_answers([folder for folder in folders if Path(folder, "task.toml").is_file()])
            found.benchflow = benchflow_answers([folder for folder in folders if Path(folder, "task.md").is_file()])
        except peers.PeerUnavailable as error:
            raise SystemExit(f"{error}; use --no-peer to check without it.") from error
    return found


def missing(path: Path, reported: set[str]) -> list[str]:
    """Folders with a definition that are neither reported nor part of a reported package; our discovery is not used."""
    left = []
    for folder, below, files in os.walk(path):
        below[:] = [name for name in below if not name.startswith(".")]
        if folder in reported:
            below.clear()
        elif not set(MARKERS).isdisjoint(files):
            left.append(folder)
    return left


def benchflow_answers(folders: list[str]) -> dict[str, str | None]:
    """For each folder None, or why benchflow refuses it."""
    if not folders:
        return {}
    python = peers.peer_environment("benchflow==0.6.2") / "python"
    done = subprocess.run(
        [python, "-c", COMMAND], check=True, input=json.dumps(folders), stdout=subprocess.PIPE, text=True
    )
    answers: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return answers


def exported(out: Path) -> Path:
    """The examples in the layout that Harbor reads, without those that it is known to refuse."""
    for package in sorted(EXAMPLES.iterdir()):
        if (package / "task.md").is_file():
            export_task_to_split_layout(package, out / package.name)
            if (
                json.loads((out / package.name / "compatibility/export-report.json").read_text())["status"]
                == "target-refuses"
            ):
                (out / package.name).rename(out.parent / package.name)
    return out


def report(sets: list[Set]) -> int:
    head = ["set", "packages", "valid", "invalid", "crashes", "missing", "Harbor loads", "benchflow accepts"]
    print_cells([[*head, "disagreements", "speed"], *(found.cells() for found in sets)])
    explained: dict[str, list[str]] = {}
    for found in sets:
        for explanation, path, reason in found.disagreements():
            explained.setdefault(explanation, []).append(f"{path}: {' '.join(reason.split())}")
    for explanation, lines in sorted(explained.items()):
        print(f"\n{explanation}: {len(lines):,}")
        print("\n".join(f"  {line}" for line in lines))
    for folder in (folder for found in sets for folder in found.missing):
        print(f"\nnot reported: {folder}")
    bad = "ours" in explained or any(found.missing or found.crashes() for found in sets)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
