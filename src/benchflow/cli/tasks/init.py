"""`bench tasks init`: creates a new package, with placeholders where the author has to write."""

from __future__ import annotations

from pathlib import Path

import click

from benchflow.cli.arguments import PATH, json_option
from benchflow.cli.tasks.rendering import counted
from benchflow.cli.terminal import emit, emit_json, printable, style
from benchflow.errors import UsageError


@click.command()
@click.argument("name")
@click.option("--preset", metavar="PRESET", help="Start from a preset, such as code-change.")
@click.option("--org", default="local", show_default=True, help="Organisation in task.name.")
@click.option("--dir", "folder", type=PATH, default=Path(), help="Create the package below this folder.")
@json_option
def init(name: str, preset: str | None, org: str, folder: Path, as_json: bool) -> None:
    """Create a new package in the folder NAME.

    Fill in the placeholders; `bench tasks check NAME` lists those that remain.
    """
    from benchflow.files.atomic import staged_folder
    from benchflow.task.document.authoring import PRESETS
    from benchflow.task.package_scaffold import MARKER, scaffold_package

    if preset is not None and preset not in PRESETS:
        raise UsageError(f"unknown preset '{preset}'; available: {', '.join(PRESETS)}", code="unknown-preset")
    files = scaffold_package(name, organisation=org, preset=preset)
    target = folder / name
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: not a folder", code="not-a-folder")
    try:
        with staged_folder(target) as staging:
            for relative, file in files.items():
                path = staging / relative
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(file.text)
                path.chmod(0o755 if file.executable else 0o644)
    except FileExistsError as error:
        raise UsageError(str(error), code="output-exists") from None
    markers = sum(file.text.count(MARKER) for file in files.values())
    if as_json:
        emit_json({"path": str(target), "files": sorted(files), "markers": markers})
        return
    emit(f"Created {style(printable(str(target)), 'bold')} with {counted(markers, 'placeholder')} to fill in:")
    for relative in sorted(files):
        emit(f"  {relative}")
    emit(f"Then: bench tasks check {printable(str(target))}")
