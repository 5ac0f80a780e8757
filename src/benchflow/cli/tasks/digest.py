"""`bench tasks digest`: the digest of packages, valid or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchflow.cli.arguments import json_option, package_paths
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.progress import Progress
from benchflow.cli.terminal import emit, emit_json, note, printable
from benchflow.task.discovery import FoundPackage, find_packages
from benchflow.task.package import load_package
from benchflow.task.workers import ordered_map


@click.command()
@package_paths
@json_option
def digest(paths: tuple[Path, ...], as_json: bool) -> int:
    """Print the digest of packages, one 'sha256:<hex>  <path>' per line.

    The digest covers every regular file of a package and the profiles it refers to.
    """
    found = find_packages(paths)
    entries = []
    for entry in Progress("Hashing packages:", len(found)).over(ordered_map(_digest, found)):
        entries.append(entry)
        if entry["digest"] is None:
            note(f"{printable(entry['path'])}: {printable(entry['problem'])}")
        elif not as_json:
            emit(f"{entry['digest']}  {printable(entry['path'])}")
    unreadable = sum(entry["digest"] is None for entry in entries)
    if as_json:
        emit_json({"summary": {"total": len(entries), "unreadable": unreadable}, "tasks": entries})
    return FAILED if unreadable else GOOD


def _digest(found: FoundPackage) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": found.shown, "name": found.folder_name}
    if found.problem is not None:
        return {**entry, "digest": None, "content_digest": None, "problem": found.problem.message}
    package = found.entry or load_package(found.path)
    return {**entry, "name": package.name, "digest": package.digest, "content_digest": package.content_digest}
