"""`bench leaderboard`: results as one file that a stranger can check, and the check."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from benchflow.cli.arguments import PATH, json_option
from benchflow.cli.eval.inspect import jobs_dir_option
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.terminal import emit, emit_json, note, printable
from benchflow.errors import UsageError
from benchflow.record import Job

if TYPE_CHECKING:
    from benchflow.evidence.leaderboard.board_check import CheckedBoard
    from benchflow.evidence.leaderboard.board_selection import BoardProblem
    from benchflow.evidence.leaderboard.verdicts_again import VerdictReport


@click.group("leaderboard")
def leaderboard() -> None:
    """Publish results as one file, and verify published files."""


@leaderboard.command(short_help="Write finished jobs into one file that others can verify.")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("-o", "--output", required=True, type=PATH, metavar="FILE", help="The file to write.")
@click.option("--sign", type=PATH, metavar="KEYFILE", help="Sign with the Ed25519 private key in this file.")
@jobs_dir_option
@json_option
def export(jobs: tuple[str, ...], output: Path, sign: Path | None, jobs_dir: Path, as_json: bool) -> int:
    """Write finished jobs into one file that others can verify, and show the table.

    Each JOB is a name below the jobs folder, or a path. Jobs in one file have the same packages, attempts and settings,
    and differ in agent and model. Results that were selected or edited are refused, and nothing is written.
    """
    from benchflow.evidence.leaderboard.board_export import export_board
    from benchflow.evidence.leaderboard.board_signing import signer

    if output.exists():
        raise UsageError(f"{output} already exists.", code="output-exists")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"{output} cannot be written: its folder does not exist.", code="output-unwritable")
    found = [Job.find(jobs_dir, name) for name in jobs]
    checked = export_board(found, output, signer(sign) if sign is not None else None)
    return _report(checked, [*checked.problems], None, output, "Nothing was written", as_json=as_json)


@leaderboard.command(short_help="Check a leaderboard file offline.")
@click.argument("file", type=PATH)
@click.option("--packages", type=PATH, multiple=True, metavar="PATH", help="Recompute verdicts with these packages.")
@click.option("--all-verdicts", is_flag=True, help="With --packages: fail unless every verdict is confirmed.")
@click.option("--sandbox", metavar="NAME", help="Sandbox for recomputing verdicts; default: that of the jobs.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=4,
    show_default=True,
    help="Maximum number of concurrent verifications.",
)
@click.option("--key", type=PATH, metavar="PUBKEY", help="Require a signature by this Ed25519 public key.")
@json_option
def verify(
    file: Path,
    packages: tuple[Path, ...],
    all_verdicts: bool,
    sandbox: str | None,
    concurrency: int,
    key: Path | None,
    as_json: bool,
) -> int:
    """Check a leaderboard file offline: every byte, every statistic, and that no result was selected.

    With --packages, recomputes each verdict from the kept workspace, and lists those that cannot be recomputed with
    the reason. Exits with 0 if everything matches the file, otherwise with 1.
    """
    from benchflow.evidence.leaderboard.board_check import check_board

    if all_verdicts and not packages:
        raise UsageError("--all-verdicts needs --packages.", code="option-alone")
    checked = check_board(file)
    problems = [*checked.problems, *_signature_problems(checked, key)]
    verdicts = None
    if packages and not problems:
        verdicts = _recompute(checked, packages, sandbox, concurrency)
        problems += [*verdicts.problems, *(verdicts.unconfirmed() if all_verdicts else ())]
    return _report(checked, problems, verdicts, file, f"{file} is not valid", as_json=as_json)


def _signature_problems(checked: CheckedBoard, key: Path | None) -> list[BoardProblem]:
    from benchflow.evidence.leaderboard.board_selection import BoardProblem
    from benchflow.evidence.leaderboard.board_signing import can_sign, signature_problem

    if checked.file is None or (checked.file.board.signature is None and key is None):
        return []
    if key is None and not can_sign():
        from cube.extras import extra_command

        note(f"The signature was not checked: {extra_command('sign')}")
        return []
    problem = signature_problem(checked.file.board, key)
    return [] if problem is None else [BoardProblem("signature-wrong", "leaderboard.json", problem)]


def _recompute(
    checked: CheckedBoard, packages: tuple[Path, ...], sandbox: str | None, concurrency: int
) -> VerdictReport:
    from benchflow.cli.progress import Progress
    from benchflow.evidence.leaderboard.verdicts_again import VerdictCheck, VerdictReport

    if checked.file is None:
        return VerdictReport()
    check = VerdictCheck(checked.file, checked.jobs, packages, sandbox)
    progress = Progress("Computing verdicts:", len(check.items))
    try:
        return anyio.run(lambda: check.run(concurrency=concurrency, done=progress.advance))
    finally:
        progress.hide()


def _report(
    checked: CheckedBoard,
    problems: list[BoardProblem],
    verdicts: VerdictReport | None,
    file: Path,
    failed: str,
    *,
    as_json: bool,
) -> int:
    if as_json:
        emit_json(_document(checked, problems, verdicts, file))
        return FAILED if problems else GOOD
    if checked.file is not None and not checked.problems:
        _show(checked, verdicts, file)
    for problem in problems:
        note(printable(str(problem)))
    if problems:
        note(printable(f"{failed}: {len(problems)} {'problem' if len(problems) == 1 else 'problems'}."))
    return FAILED if problems else GOOD


def _document(
    checked: CheckedBoard, problems: list[BoardProblem], verdicts: VerdictReport | None, file: Path
) -> dict[str, Any]:
    board = checked.file.board.to_dict() if checked.file is not None else {}
    recomputed = None
    if verdicts is not None:
        left = [asdict(one) for one in verdicts.not_recomputed]
        recomputed = {"confirmed": verdicts.confirmed, "not_recomputed": left}
    return {
        "file": str(file),
        "valid": not problems,
        "digest": checked.file.digest if checked.file is not None else None,
        "problems": [asdict(problem) for problem in problems],
        "verdicts": recomputed,
        "signature": board.get("signature"),
        "jobs": board.get("jobs", []),
        "comparisons": board.get("comparisons", []),
    }


def _show(checked: CheckedBoard, verdicts: VerdictReport | None, file: Path) -> None:
    from benchflow.evidence.leaderboard.board_table import board_lines, verdict_lines

    if checked.file is None:
        return
    board = checked.file.board
    for line in (*board_lines(board), "", *(verdict_lines(verdicts) if verdicts is not None else ())):
        emit(printable(line))
    if board.signature is not None:
        emit(f"signed with the key {board.signature.public_key}")
    if file.exists():
        emit(printable(f"{checked.file.digest}  {file}"))
