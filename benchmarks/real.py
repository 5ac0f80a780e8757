"""Do tasks that other people wrote run here as their authors intended?

Takes folders of packages, each folder a set, and decides before anything runs which packages this machine can serve:
their images are Debian, Ubuntu, Python or Node, and the files that run name no host but the package indexes and use no
client of another host (`lib/clients.toml`). On each it runs an agent that does nothing and, where that does not score
full, the oracle, and prints one row per package with its class and one row of counts per set:

    worked              the oracle scores full, doing nothing does not
    nop scores full     doing nothing scores full: not counted
    needs HOST          it names, or its build or verifier asks for, a host that cannot be reached
    needs image         its image is none of the ready ones
    package wrong       examined by a person: `--examined FILE`, a TOML table of name = "reason"
    ours                everything else

The order is random with seed 0. With `--jobs-dir` the results are kept, and what has a result is not run again: a
command that was interrupted, or ended by `--minutes`, continues. The target: 95 % of the chosen packages, no `ours`.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow.record import Job, Result
from benchflow.sandbox.images.recipes import recipe_for
from benchflow.task.discovery import find_packages
from lib.asked_hosts import asked_hosts

READY = frozenset({"debian", "ubuntu", "python", "node"})
"""What the ready bases stand in for."""
LIBRARIES = ("docker.io/library/", "public.ecr.aws/docker/library/", "library/", "docker.io/")
EXAMPLES = Path(__file__).parents[1] / "examples" / "packages"
BENCH = (sys.executable, "-c", "import sys; from benchflow.cli import main; sys.exit(main())")
FULL = 1.0 - 1e-9
BATCH = 20
"""Packages per job: what an interruption by `--minutes` waits for."""
EXCLUSIONS = ("incomplete", "image", "named host", "client only")
"""Why packages are not chosen; the last: by `lib/clients.toml` alone."""
CLASSES = ("worked", "nop scores full", "needs HOST", "needs image", "package wrong", "ours")
SETTLED = frozenset({"worked", "nop scores full", "package wrong"})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A package, and why it is not run, if it is not: one of `EXCLUSIONS`, and what it needs."""

    name: str
    path: Path
    exclusion: str | None = None
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome for one package."""

    name: str
    kind: str
    oracle: str = "–"
    nop: str = "–"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a set has: all packages, why some were excluded before running, and the classes of those that were run."""

    packages: int
    excluded: Counter[str]
    kinds: Counter[str]


def candidates(path: Path, absent: Sequence[Path] = (), *, recipes: bool = False) -> Iterator[Candidate]:
    """The packages below a folder, where those files are missing in the copy."""
    for found in find_packages([path]):
        images = [image for image in named_images(found.path) if not is_ready(image, recipes=recipes)]
        asked = asked_hosts(found.path)
        exclusion, needs = None, ""
        if any((path / file).is_relative_to(found.path) for file in absent):
            exclusion, needs = "incomplete", "the whole copy"
        elif images:
            exclusion, needs = "image", f"image {images[0]}"
        elif asked:
            exclusion, needs = "named host" if asked.named else "client only", str(asked)
        yield Candidate(found.path.name, found.path, exclusion, needs)


def is_ready(image: str, *, recipes: bool) -> bool:
    """Whether a ready base stands in for an image; of all recipes, or only of those for Debian, Python and Node."""
    return family(image) in READY or (recipes and recipe_for(image) is not None)


def named_images(package: Path) -> list[str]:
    """The image of the environment, and those its Dockerfile starts from or copies from; `none` where there is none."""
    images = [match[1] for match in re.finditer(r"(?m)^\s*docker_image\s*[=:]\s*[\"']?([^\"'\s]+)", _config(package))]
    dockerfile = package / "environment" / "Dockerfile"
    if dockerfile.is_file():
        images += _dockerfile_images(dockerfile)
    return images or ["none"]


def _config(package: Path) -> str:
    for name in ("task.md", "task.toml"):
        if (package / name).is_file():
            return (package / name).read_text("utf-8", "replace")
    return ""


def _dockerfile_images(path: Path) -> list[str]:
    text = path.read_text("utf-8", "replace").replace("\\\n", " ")
    stages = {match[1].lower() for match in re.finditer(r"(?im)^\s*FROM\s+.*\sAS\s+(\S+)", text)}
    named = re.findall(r"(?im)^\s*FROM\s+(?:--\S+\s+)*(\S+)", text) + re.findall(
        r"(?im)^\s*COPY\s+.*--from=(\S+)", text
    )
    return [name for name in named if name.lower() not in stages | {"scratch"} and not name.isdecimal()]


def family(image: str) -> str:
    for prefix in LIBRARIES:
        image = image.removeprefix(prefix)
    return re.split(r"[:@]", image)[0]


def run_set(chosen: Sequence[Candidate], jobs: Path, until: float, arguments: argparse.Namespace) -> list[Row]:
    """Run what has no result yet in batches until that time, and classify everything that was run."""
    examined = tomllib.loads(arguments.examined.read_text()) if arguments.examined else {}
    done = classified(chosen, jobs, examined)
    open_ones = [each for each in chosen if each not in done or (arguments.again and done[each].kind not in SETTLED)]
    for start in range(0, len(open_ones), BATCH):
        if time.monotonic() >= until:
            break
        batch = open_ones[start : start + BATCH]
        run("nop", batch, jobs, arguments)
        nop = results("nop", jobs)
        unfull = [each for each in batch if not is_full(nop.get(each.path.resolve()))]
        if unfull:
            run("oracle", unfull, jobs, arguments)
        print(f"{jobs.name}: {min(start + BATCH, len(open_ones))} of {len(open_ones)} run", file=sys.stderr)
    return list(classified(chosen, jobs, examined).values())


def run(agent: str, packages: Sequence[Candidate], jobs: Path, arguments: argparse.Namespace) -> None:
    """Run one agent on these packages, as one more job in the folder."""
    name = f"{agent}-{len(list(jobs.glob(f'{agent}-*'))):04}"
    options = ["--agent", agent, "--sandbox", "local", "--no-workspaces", "--concurrency", str(arguments.concurrency)]
    options += ["--name", name, "--jobs-dir", str(jobs), *arguments.option]
    paths = [str(each.path) for each in packages]
    subprocess.run([*BENCH, "eval", "run", *paths, *options], stdout=subprocess.DEVNULL, check=False)


def results(agent: str, jobs: Path) -> dict[Path, Result]:
    """The last result of each package."""
    kept = (counted.result for job in sorted(jobs.glob(f"{agent}-*")) for counted in Job(job).counted)
    return {Path(result.task.path).resolve(): result for result in kept}


def classified(chosen: Sequence[Candidate], jobs: Path, examined: dict[str, str]) -> dict[Candidate, Row]:
    """A row for each package whose runs are complete."""
    oracle, nop = results("oracle", jobs), results("nop", jobs)
    rows = dict[Candidate, Row]()
    for each in chosen:
        path = each.path.resolve()
        if path in oracle or is_full(nop.get(path)):
            rows[each] = classify(each.name, oracle.get(path), nop.get(path), examined)
    return rows


def is_full(result: Result | None) -> bool:
    return result is not None and result.reward is not None and result.reward >= FULL


def classify(name: str, oracle: Result | None, nop: Result | None, examined: dict[str, str]) -> Row:
    if is_full(nop):
        kind, why = "nop scores full", ""
    elif is_full(oracle) and nop is not None and nop.reward is not None:
        kind, why = "worked", ""
    elif name in examined:
        kind, why = "package wrong", examined[name]
    else:
        kind, why = _trouble(oracle, nop)
    return Row(name, kind, _shown(oracle), _shown(nop), why)


def _trouble(oracle: Result | None, nop: Result | None) -> tuple[str, str]:
    for result in (oracle, nop):
        if result is not None and result.error is not None:
            error = result.error
            if error.code == "network-failed":
                return "needs HOST", error.message
            if error.code == "image-missing":
                return "needs image", error.message
            return "ours", f"{error.category}/{error.code}: {error.message}"
    return "ours", "" if oracle is not None else "no result"


def _shown(result: Result | None) -> str:
    if result is None:
        return "–"
    return f"{result.reward:g}" if result.reward is not None else "unscored"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="folders of packages; default: the examples")
    parser.add_argument("--jobs-dir", type=Path, help="where the results are kept, one folder per set")
    parser.add_argument("--absent", type=Path, help="a list of files that the copy of a set lacks, one path per line")
    parser.add_argument("--recipes", action="store_true", help="also choose images that other ready bases stand for")
    parser.add_argument("--sample", type=int, help="run at most this many of the chosen packages of each set")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no batch after this time")
    parser.add_argument("--again", action="store_true", help="also run again what neither worked nor scored for nop")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--examined", type=Path, help='TOML: package name = "what is wrong with it"')
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        help="passed on to `bench eval run`, such as --option=--base-image=host",
    )
    parser.add_argument("--list", action="store_true", help="only print what would run and what would not")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        jobs = arguments.jobs_dir or Path(folder)
        counts = dict[str, Counts]()
        print("| package | class | oracle | nop | why |\n|---|---|---|---|---|")
        for path in arguments.paths or [EXAMPLES]:
            absent = arguments.absent.read_text().splitlines() if arguments.absent else []
            found = list(candidates(path, [Path(file) for file in absent], recipes=arguments.recipes))
            chosen = [each for each in found if each.exclusion is None]
            random.Random(0).shuffle(chosen)
            rows = [] if arguments.list else run_set(chosen[: arguments.sample], jobs / path.name, until, arguments)
            excluded = [each for each in found if each.exclusion is not None]
            reasons = Counter(str(each.exclusion) for each in excluded)
            counts[path.name] = Counts(len(found), reasons, Counter(row.kind for row in rows))
            rows += [Row(each.name, f"needs {each.needs}", why="before running") for each in excluded]
            for row in rows:
                print(f"| {row.name} | {row.kind} | {row.oracle} | {row.nop} | {' '.join(row.why.split())[:300]} |")
    report(counts)


def report(sets: dict[str, Counts]) -> None:
    """One row of counts per set: why packages were not chosen, and what became of those that were."""
    columns = ("packages", *EXCLUSIONS, "chosen", "run", *CLASSES)
    print(f"\n| set | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, counts in sets.items():
        excluded = [counts.excluded[reason] for reason in EXCLUSIONS]
        run = [counts.kinds.total(), *(counts.kinds[kind] for kind in CLASSES)]
        row = [counts.packages, *excluded, counts.packages - sum(excluded), *run]
        print(f"| {name} | {' | '.join(f'{number:,}' for number in row)} |")
    kinds = sum((counts.kinds for counts in sets.values()), Counter[str]())
    counted = kinds.total() - kinds["nop scores full"]
    if counted:
        print(
            f"\nworked: {kinds['worked']} of {counted} counted packages ({kinds['worked'] / counted:.1%}; target 95 %)"
        )


if __name__ == "__main__":
    main()
