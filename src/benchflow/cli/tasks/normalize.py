"""`bench tasks normalize`: `task.md` in canonical form, with presets and shorthands expanded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchflow.cli.arguments import PATH, json_option, package_path
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.tasks.rendering import failure_issues, issue_lines
from benchflow.cli.tasks.selection import one_package
from benchflow.cli.terminal import emit, emit_json, note, printable
from benchflow.errors import Issue, PackageError, UsageError


@click.command()
@package_path
@click.option("--write", is_flag=True, help="Rewrite the package; headings in the body are moved to prompts/.")
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write the document to a new file.")
@json_option
def normalize(path: Path, write: bool, output: Path | None, as_json: bool) -> int:
    """Expand presets and print task.md in canonical form.

    Without --write or -o, the document is printed to stdout. Agent prompts never change.
    """
    if write and output is not None:
        raise UsageError("--write and -o cannot be combined", code="usage")
    if output is not None and (output.exists() or output.is_symlink()):
        raise UsageError(f"{output} already exists", code="output-exists")
    folder = one_package(path, to_change=write).path
    try:
        result, issues = _rewrite(folder) if write else _render(folder, output)
    except PackageError as error:
        problems = failure_issues(error)
        if as_json:
            emit_json({"path": str(path), "issues": [issue.to_dict() for issue in problems]})
        else:
            note("\n".join(issue_lines(problems, str(path), indent="")))
        return FAILED
    if as_json:
        emit_json({"path": str(path), **result, "issues": [issue.to_dict() for issue in issues]})
        return GOOD
    if result["written"]:
        emit("\n".join(f"Wrote {printable(name)}" for name in result["written"]))
    else:
        emit(result["text"].rstrip("\n"))
    for line in issue_lines(issues, str(path), indent=""):
        note(line)
    return GOOD


def _rewrite(folder: Path) -> tuple[dict[str, Any], tuple[Issue, ...]]:
    from benchflow.task.normalization import normalize_package

    done = normalize_package(folder, write=True)
    written = [str(folder / name) for name in ("task.md", *done.prompts)]
    return {"text": done.text, "prompts": dict(done.prompts), "written": written}, done.issues


def _render(folder: Path, output: Path | None) -> tuple[dict[str, Any], tuple[Issue, ...]]:
    from benchflow.files.atomic import write_atomic
    from benchflow.task.document.markdown import decode
    from benchflow.task.document.task_document import TASK_MD, TaskDocumentParseError
    from benchflow.task.normalization import render_normalized_task_md
    from benchflow.task.package import load_package

    package = load_package(folder)
    if package.entrypoint != TASK_MD:
        raise PackageError("there is no task.md to normalize; create one with 'bench tasks migrate'", code="not-native")
    if package.document is None:
        raise TaskDocumentParseError(package.document_issues)
    text = render_normalized_task_md(decode(package.files.read(TASK_MD)), path=folder)
    if output is not None:
        write_atomic(output, text)
    return {"text": text, "prompts": {}, "written": [] if output is None else [str(output)]}, ()
