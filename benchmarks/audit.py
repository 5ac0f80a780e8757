"""What does the audit say of packages that other people wrote, and does it say the same twice?

Takes folders of packages, each folder a set. As in `real.py` it is decided before anything runs which packages this
machine can serve; of those a random sample is drawn with a fixed seed. Each package of the sample is audited in a
command of its own. Then every family that was broken or voided is tried again, and all families on a random tenth. An
agent that does nothing is run once more by `bench eval run`: the audit must have found what scores full for it.

Prints one row per set, one per family that was broken or voided, the families that were applicable to no package, and
what is wrong: crashes, verdicts that did not repeat, packages that score for nothing and were not found. These end the
script with 1. With `--results` the reports are kept, and what has a report is not audited again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.record import Job
from real import BENCH, EXAMPLES, Candidate, candidates

SEED = 13
BAD = ("broken", "voided")
MORE = 0.1
"""Of the packages: those on which all families are tried twice."""
LONGEST_SEC = 3600


@dataclass(frozen=True, slots=True)
class Audited:
    """A package and its reports: the first run, the families that were tried again, the nop's reward."""

    set: str
    package: Candidate
    first: Mapping[str, Any] | None
    again: Mapping[str, Any] | None
    nop: float | None = None

    def verdicts(self, *, again: bool = False) -> dict[str, str]:
        report = self.again if again else self.first
        return {family["family"]: family["verdict"] for family in (report or {}).get("families", ())}

    def bad(self) -> list[str]:
        return [name for name, verdict in self.verdicts().items() if verdict in BAD]

    def wrong(self) -> Iterator[str]:
        """What must not be."""
        if self.first is None:
            yield "has no report"
            return
        if not self.first["families"]:
            codes = ", ".join(sorted({issue["code"] for issue in self.first["findings"]}))
            yield f"could not be audited: {codes}"
        if self.again is not None:
            before, after = self.verdicts(), self.verdicts(again=True)
            for name, verdict in after.items():
                if verdict != before.get(name) and {verdict, before.get(name)} & set(BAD):
                    yield f"{name} was {before.get(name)} first and {verdict} then"
        if self.nop is not None and self.nop > 1 - 1e-9 and self.verdicts().get("do-nothing") != "broken":
            yield "doing nothing scores full, and do-nothing is not broken"


def chosen_of(path: Path, absent: Sequence[Path], sample: int | None) -> tuple[int, list[Candidate], list[Candidate]]:
    """How many packages a set has, those that can be served here, and the sample of these."""
    found = list(candidates(path, absent))
    chosen = [each for each in found if each.exclusion is None]
    drawn = sorted(chosen, key=lambda each: each.path.as_posix())
    random.Random(SEED).shuffle(drawn)
    return len(found), chosen, drawn[:sample]


def report_of(package: Candidate, place: Path, families: Sequence[str], arguments: argparse.Namespace) -> Any:
    """The report of a package, made unless it is there; None if the command wrote none."""
    if not place.exists():
        options = [f"--family={name}" for name in families]
        command = [*BENCH, "tasks", "audit", str(package.path), "-o", str(place), *options, *arguments.option]
        with place.with_suffix(".log").open("wb") as log:
            try:
                subprocess.run(command, stdout=log, stderr=log, check=False, timeout=LONGEST_SEC)
            except subprocess.TimeoutExpired:
                log.write(f"stopped after {LONGEST_SEC} s\n".encode())
    return json.loads(place.read_text())["tasks"][0] if place.exists() else None


def place_of(folder: Path, package: Candidate, kind: str) -> Path:
    name = hashlib.sha256(package.path.resolve().as_posix().encode()).hexdigest()[:12]
    return folder / f"{package.name}-{name}-{kind}.json"


def audit_set(path: Path, sample: Sequence[Candidate], until: float, arguments: argparse.Namespace) -> list[Audited]:
    folder = arguments.results / path.name
    folder.mkdir(parents=True, exist_ok=True)
    twice = {each.path for each in sample if random.Random(f"{SEED} {each.name}").random() < MORE}

    def one(package: Candidate) -> Audited | None:
        place = place_of(folder, package, "first")
        if time.monotonic() >= until and not place.exists():
            return None
        first = report_of(package, place, (), arguments)
        bad = Audited(path.name, package, first, None).bad()
        again = None
        if first is not None and package.path in twice:
            again = report_of(package, place_of(folder, package, "again"), (), arguments)
        elif bad:
            again = report_of(package, place_of(folder, package, "again"), bad, arguments)
        return Audited(path.name, package, first, again)

    with ThreadPoolExecutor(arguments.processes) as pool:
        audited = [each for each in pool.map(one, sample) if each is not None]
    nops = nop_rewards([each.package for each in audited], folder / "nop-jobs", arguments)
    return [
        Audited(each.set, each.package, each.first, each.again, nops.get(each.package.path.resolve()))
        for each in audited
    ]


def nop_rewards(packages: Sequence[Candidate], jobs: Path, arguments: argparse.Namespace) -> dict[Path, float | None]:
    """What an agent that does nothing gets, by an ordinary evaluation."""
    known = _rewards(jobs)
    left = [str(each.path) for each in packages if each.path.resolve() not in known]
    if left:
        name = f"nop-{len(list(jobs.glob('nop-*'))):04}"
        options = ["--agent", "nop", "--no-workspaces", "--name", name, "--jobs-dir", str(jobs), *arguments.option]
        subprocess.run([*BENCH, "eval", "run", *left, *options], stdout=subprocess.DEVNULL, check=False)
    return _rewards(jobs)


def _rewards(jobs: Path) -> dict[Path, float | None]:
    results = (counted.result for job in sorted(jobs.glob("nop-*")) for counted in Job(job).counted)
    return {Path(result.task.path).resolve(): result.reward for result in results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="folders of packages; default: the examples")
    parser.add_argument("--results", type=Path, help="where the reports are kept, one folder per set")
    parser.add_argument("--absent", type=Path, help="a list of files that the copy of a set lacks, one path per line")
    parser.add_argument("--sample", type=int, help="audit at most this many packages of each set")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no package after this time")
    parser.add_argument("--processes", type=int, default=1, help="packages that are audited at once")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        help="passed on to `bench tasks audit` and `bench eval run`, such as --option=--machine-settings=all",
    )
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        arguments.results = arguments.results or Path(folder)
        absent = [Path(file) for file in arguments.absent.read_text().splitlines()] if arguments.absent else []
        rows, audited = list[tuple[str, int, int]](), list[Audited]()
        for path in arguments.paths or [EXAMPLES]:
            packages, chosen, sample = chosen_of(path, absent, arguments.sample)
            rows.append((path.name, packages, len(chosen)))
            audited += audit_set(path, sample, until, arguments)
    sys.exit(report(rows, audited))


def report(sets: Sequence[tuple[str, int, int]], audited: Sequence[Audited]) -> int:
    print("| set | packages | can be served | audited | sound | unsound | nop scores full | tried twice | wrong |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, packages, chosen in sets:
        own = [each for each in audited if each.set == name]
        sound = sum(bool(each.first and each.first["sound"]) for each in own)
        nop = sum(each.verdicts().get("do-nothing") == "broken" for each in own)
        again = sum(each.again is not None for each in own)
        wrong = sum(any(each.wrong()) for each in own)
        row = [packages, chosen, len(own), sound, len(own) - sound, nop, again, wrong]
        print(f"| {name} | {' | '.join(f'{number:,}' for number in row)} |")
    print(
        "\n| family | broken | voided | tried again | repeated | held | not applicable |\n|---|---|---|---|---|---|---|"
    )
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for each in audited:
        after = each.verdicts(again=True)
        for name, verdict in each.verdicts().items():
            counts[name][verdict] += 1
            if verdict in BAD and name in after:
                counts[name].update(["again"] + ["repeated"] * (after[name] == verdict))
    for name, seen in counts.items():
        if seen["broken"] + seen["voided"]:
            row = [seen[key] for key in ("broken", "voided", "again", "repeated", "held", "not-applicable")]
            print(f"| `{name}` | {' | '.join(f'{number:,}' for number in row)} |")
    tried = [
        name
        for name, seen in counts.items()
        if seen["not-applicable"] < seen.total() - seen["again"] - seen["repeated"]
    ]
    never = [name for name in counts if name not in tried]
    print(f"\n{len(tried)} of {len(counts)} families were applicable to at least one package.")
    if never:
        print(f"Applicable to none: {', '.join(f'`{name}`' for name in never)}.")
    wrong = [f"{each.package.path}: {what}" for each in audited for what in each.wrong()]
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    main()
