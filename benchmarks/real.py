"""Do tasks that other people wrote run here as they wrote them?

Takes folders of packages and decides before anything runs which of them this machine can serve: their images are
Debian, Ubuntu, Python or Node, and the files that run name no host. Then it runs the oracle and an agent that does
nothing on each, and prints one row per package with its class:

    worked              the oracle scores full, doing nothing does not
    nop scores full     doing nothing scores full: not counted
    needs HOST          it names, or its build or verifier asks for, a host that cannot be reached
    needs image         its image is none of the ready ones
    package wrong       examined by a person: `--examined FILE`, a TOML table of name = "reason"
    ours                everything else

With `--jobs-dir` the jobs are kept, and continued when they exist. The target: 95 % of the chosen packages, no `ours`.
"""

from __future__ import annotations

import argparse
import ipaddress
import random
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchflow.record import Job, Result
from benchflow.task.discovery import find_packages

READY = frozenset({"debian", "ubuntu", "python", "node"})
"""What the ready bases stand in for."""
LIBRARIES = ("docker.io/library/", "public.ecr.aws/docker/library/", "library/", "docker.io/")
RUN_FILES = re.compile(
    r"(?i)(^|/)(dockerfile[^/]*|[^/]*compose[^/]*\.ya?ml|makefile|gemfile|go\.mod|package(-lock)?\.json"
    r"|requirements[^/]*\.txt|[^/]*\.(sh|bash|py|js|mjs|cjs|ts|rb|pl|toml|cfg))$"
)
URL_HOST = re.compile(r"(?i)\b(?:https?|git|ssh|ftp)://(?:[^/@\s\"']*@)?([a-z0-9.-]+)|\bgit@([a-z0-9.-]+):")
RESERVED = (
    ".example",
    ".test",
    ".invalid",
    ".local",
    ".localhost",
    ".internal",
    "example.com",
    "example.org",
    "example.net",
)
EXAMPLES = Path(__file__).parents[1] / "examples" / "packages"
BENCH = (sys.executable, "-c", "import sys; from benchflow.cli import main; sys.exit(main())")
FULL = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """A package, and why it is not run, if it is not."""

    name: str
    path: Path
    excluded: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome for one package."""

    name: str
    kind: str
    oracle: str
    nop: str
    why: str


def candidates(paths: list[Path]) -> Iterator[Candidate]:
    for found in find_packages(paths):
        hosts = foreign_hosts(found.path)
        images = [image for image in named_images(found.path) if family(image) not in READY]
        excluded = None
        if images:
            excluded = f"needs image {images[0]}"
        elif hosts:
            excluded = f"needs {', '.join(sorted(hosts)[:3])}"
        yield Candidate(found.path.name, found.path, excluded)


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


def foreign_hosts(package: Path) -> set[str]:
    """Hosts that files name which run: scripts, build files, requirements."""
    hosts = set[str]()
    for path in package.rglob("*"):
        if RUN_FILES.search(path.as_posix()) and path.is_file() and path.stat().st_size < 1_000_000:
            for match in URL_HOST.finditer(path.read_text("utf-8", "replace")):
                host = (match[1] or match[2]).lower().rstrip(".")
                if not _is_reserved(host):
                    hosts.add(host)
    return hosts


def _is_reserved(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith(RESERVED)


def run(agent: str, chosen: list[Candidate], arguments: argparse.Namespace) -> dict[Path, Result]:
    """Run one agent on all chosen packages, or continue that job."""
    job = arguments.jobs_dir / agent
    place = ("--jobs-dir", str(arguments.jobs_dir))
    if job.is_dir():
        command = [*BENCH, "eval", "resume", agent, *place]
    else:
        options = [
            "--agent",
            agent,
            "--no-workspaces",
            "--concurrency",
            str(arguments.concurrency),
            "--name",
            agent,
            *place,
        ]
        options += arguments.option
        command = [*BENCH, "eval", "run", *(str(each.path) for each in chosen), *options]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    return {Path(counted.result.task.path).resolve(): counted.result for counted in Job(job).counted}


def classify(name: str, oracle: Result | None, nop: Result | None, examined: dict[str, str]) -> Row:
    best, least = (result.reward if result is not None else None for result in (oracle, nop))
    if least is not None and least >= FULL:
        kind, why = "nop scores full", ""
    elif best is not None and best >= FULL and least is not None:
        kind, why = "worked", ""
    elif name in examined:
        kind, why = "package wrong", examined[name]
    else:
        kind, why = _trouble(oracle, nop)
    return Row(name, kind, _told(oracle), _told(nop), why)


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


def _told(result: Result | None) -> str:
    if result is None:
        return "–"
    return f"{result.reward:g}" if result.reward is not None else "unscored"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="folders of packages; default: the examples")
    parser.add_argument("--jobs-dir", type=Path, help="where the jobs `oracle` and `nop` are kept")
    parser.add_argument("--sample", type=int, help="run this many of the chosen packages, at random with seed 0")
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
    found = list(candidates(arguments.paths or [EXAMPLES]))
    chosen = [each for each in found if each.excluded is None]
    if arguments.sample is not None and arguments.sample < len(chosen):
        chosen = random.Random(0).sample(chosen, arguments.sample)
    rows = [
        Row(each.name, each.excluded, "–", "–", "decided before running") for each in found if each.excluded is not None
    ]
    if not arguments.list and chosen:
        with tempfile.TemporaryDirectory() as folder:
            arguments.jobs_dir = arguments.jobs_dir or Path(folder)
            oracle, nop = run("oracle", chosen, arguments), run("nop", chosen, arguments)
        examined = tomllib.loads(arguments.examined.read_text()) if arguments.examined else {}
        rows += [
            classify(each.name, oracle.get(each.path.resolve()), nop.get(each.path.resolve()), examined)
            for each in chosen
        ]
    report(rows, len(chosen))


def report(rows: list[Row], chosen: int) -> None:
    print("| package | class | oracle | nop | why |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.name} | {row.kind} | {row.oracle} | {row.nop} | {' '.join(row.why.split())[:300]} |")
    counts = Counter(row.kind for row in rows)
    print("\n| class | packages |\n|---|---|")
    for kind, count in counts.most_common():
        print(f"| {kind} | {count} |")
    counted = chosen - counts["nop scores full"]
    if counted:
        print(
            f"\nworked: {counts['worked']} of {counted} chosen packages ({counts['worked'] / counted:.1%}; target 95 %)"
        )


if __name__ == "__main__":
    main()
