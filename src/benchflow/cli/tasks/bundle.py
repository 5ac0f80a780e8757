"""`bench tasks bundle`: packages as one file with one digest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchflow.cli.arguments import PATH, json_option, package_paths
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.progress import Progress
from benchflow.cli.tasks.rendering import counted
from benchflow.cli.terminal import emit, emit_json, note, printable
from benchflow.errors import UsageError
from benchflow.task.discovery import FoundPackage, find_packages
from benchflow.task.workers import ordered_map

if TYPE_CHECKING:
    from benchflow.task.bundles.bundle_index import Benchmark
    from benchflow.task.bundles.bundle_writing import Gathered


@click.command()
@package_paths
@click.option("-o", "--output", required=True, type=PATH, metavar="FILE", help="The file to write.")
@click.option("--manifest", type=PATH, metavar="FILE", help="TOML or JSON file with the keys of the options below.")
@click.option("--name", metavar="TEXT", help="Name of the benchmark.")
@click.option("--version", metavar="TEXT", help="Version of the benchmark.")
@click.option("--license", metavar="TEXT", help="Licence of the benchmark, such as Apache-2.0.")
@click.option("--description", metavar="TEXT", help="Description of the benchmark.")
@click.option("--split", "splits", multiple=True, metavar="NAME=PATTERN,...", help="Packages of a split; repeatable.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@json_option
def bundle(
    paths: tuple[Path, ...],
    output: Path,
    manifest: Path | None,
    splits: tuple[str, ...],
    overwrite: bool,
    as_json: bool,
    **texts: str | None,
) -> int:
    """Bundle packages into one file with one digest.

    Each PATH is a package or a folder above packages. Files beside packages that belong to them, such as profiles, are
    included. The same packages produce the same bytes on every machine. Every command that takes a PATH also takes the
    file: FILE is all of it, FILE:PATH one package, FILE#NAME a split, and FILE@sha256:DIGEST pins it.
    """
    from benchflow.task.bundles.bundle_writing import make_index, write_bundle

    benchmark = _benchmark(manifest, splits, texts)
    found = find_packages(paths)
    _require_room(output, found, overwrite=overwrite)
    gathered = list(Progress("Reading packages:", len(found)).over(ordered_map(_gather, found)))
    refused = [package.problem for package in gathered if package.problem]
    if refused:
        if as_json:
            emit_json({"path": str(output), "digest": None, "problems": refused})
        note("\n".join(printable(problem) for problem in refused))
        note(f"Nothing was written: {counted(len(refused), 'package')} cannot be bundled.")
        return FAILED
    contents = make_index(gathered, _resolved(benchmark, gathered))
    digest = write_bundle(output, contents)
    return _report(output, digest, contents.listing.benchmark, gathered, as_json=as_json)


def _gather(found: FoundPackage) -> Gathered:
    from benchflow.task.bundles.bundle_index import PackageEntry
    from benchflow.task.bundles.bundle_writing import Gathered, gather

    if found.problem is not None:
        entry = PackageEntry("", "", "", "")
        return Gathered(entry, (), (), False, f"{found.shown}: {found.problem.message}")
    return gather(found.path, _inside(found), found.shown)


def _inside(found: FoundPackage) -> str:
    """The path of a package in the bundle: below the path that was given, or the name of its folder."""
    if found.inside is not None:
        return found.inside[1]
    return found.folder_name if found.named else found.path.relative_to(found.root).as_posix()


def _require_room(output: Path, found: list[FoundPackage], *, overwrite: bool) -> None:
    if output.is_dir() or (output.exists() and not overwrite):
        raise UsageError(f"{output} already exists", code="output-exists")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"{output} cannot be written: its folder does not exist", code="output-unwritable")
    place = output.resolve()
    inside = next((one for one in found if one.inside is None and one.path.resolve() in place.parents), None)
    if inside is not None:
        raise UsageError(f"{output} is inside the package {inside.shown}", code="output-overlaps")


def _benchmark(manifest: Path | None, splits: tuple[str, ...], texts: dict[str, str | None]) -> Benchmark:
    """The manifest, with options in the place of what it says."""
    from benchflow.task.bundles.benchmark_manifest import parse_split, read_manifest_file
    from benchflow.task.bundles.bundle_index import Benchmark

    base = Benchmark() if manifest is None else read_manifest_file(manifest)
    given: dict[str, Any] = {key: value for key, value in texts.items() if value is not None}
    chosen: dict[str, tuple[str, ...]] = {}
    for option in splits:
        name, patterns = parse_split(option)
        chosen[name] = (*chosen.get(name, ()), *patterns)
    return replace(base, **given, splits={**base.splits, **chosen})


def _resolved(benchmark: Benchmark, gathered: list[Gathered]) -> Benchmark:
    from benchflow.task.bundles.benchmark_manifest import resolve

    return replace(benchmark, splits=resolve(benchmark.splits, [package.entry for package in gathered]))


def _report(output: Path, digest: str, benchmark: Benchmark, gathered: list[Gathered], *, as_json: bool) -> int:
    invalid = [package.entry.path for package in gathered if not package.valid]
    size = output.stat().st_size
    if as_json:
        summary = {"total": len(gathered), "valid": len(gathered) - len(invalid), "invalid": len(invalid)}
        emit_json(
            {
                "path": str(output),
                "digest": digest,
                "size": size,
                "benchmark": benchmark.to_dict(),
                "summary": summary,
                "invalid": invalid,
            }
        )
        return GOOD
    if invalid:
        note(f"{counted(len(invalid), 'package')} of the bundle cannot be used; see bench tasks check {output} --quiet")
    emit(f"{digest}  {printable(str(output))}")
    emit(f"{counted(len(gathered), 'package')}, {size:,} bytes")
    return GOOD
