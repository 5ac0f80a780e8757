"""Packs jobs into a leaderboard file: their records without paths of the machine, and the kept parts of each rollout.

The file is examined as a stranger would before it gets its name: what cannot be verified is not published.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.evidence.leaderboard.board_check import CheckedBoard, check_board
from benchflow.evidence.leaderboard.board_claims import PUBLISHED, claims, job_folder, rollout_folder
from benchflow.evidence.leaderboard.board_file import write_board
from benchflow.evidence.leaderboard.board_selection import BoardProblem
from benchflow.evidence.leaderboard.published_job import PublishedJob, parse_job
from benchflow.files.atomic import temporary_sibling
from benchflow.files.redaction import Redactor, make_redactor, secret_values
from benchflow.files.scratch import scratch
from benchflow.files.strict_json import parse_json
from benchflow.record import Counted, Job, JobRequest, Player, Result, RolloutFolder
from benchflow.record.codec import encoded_line
from benchflow.record.layout import RESCORES
from benchflow.record.leaderboard_index import Leaderboard, ListedFile

_PACKED: Final = ".gz"
_SHALLOW: Final = 3
"""A path of the machine with fewer parts, such as `/app` or `/root`, also occurs inside sandboxes, and says nothing."""
_CHUNK: Final = 1 << 20


Signer = Callable[[Leaderboard], Leaderboard]


@dataclass(frozen=True, slots=True)
class _Part:
    listed: ListedFile
    source: bytes | str


def export_board(jobs: Sequence[Job], output: Path, sign: Signer | None = None) -> CheckedBoard:
    """Write a file of jobs, unless something is wrong with them: then the problems say what, and nothing is written."""
    _require_finished(jobs)
    with scratch("leaderboard-") as folder:
        published: list[PublishedJob] = []
        parts: list[_Part] = []
        for number, job in enumerate(jobs):
            try:
                one, own = _published(job, folder / str(number))
            except ValueError as error:
                problem = BoardProblem("record-damaged", job_folder(job.record.name), str(error))
                return CheckedBoard(None, (), (problem,))
            except OSError as error:
                message = f"{error.filename or job.folder} cannot be read: {error.strerror or error}."
                raise InfrastructureFailure(message, code="job-damaged") from error
            published.append(one)
            parts += own
        parts.sort(key=lambda part: part.listed.path)
        board = claims(published, [part.listed for part in parts])
        if sign is not None:
            board = sign(board)
        temporary = temporary_sibling(output)
        try:
            write_board(temporary, board, [part.source for part in parts])
            checked = check_board(temporary)
            if not checked.problems:
                temporary.replace(output)
        finally:
            temporary.unlink(missing_ok=True)
    return checked


def _require_finished(jobs: Sequence[Job]) -> None:
    names = [job.record.name for job in jobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"Two jobs are named '{twice}'; a leaderboard file has each name once.", code="job-name")
    for job in jobs:
        if job.running:
            raise UsageError(f"Job '{job.record.name}' is still running.", code="job-running")


def _published(job: Job, folder: Path) -> tuple[PublishedJob, list[_Part]]:
    record = job.record
    redactor = make_redactor((*_machine_paths(job), *secret_values(os.environ)))
    request = _public_request(record.request, redactor)
    public = replace(record, request=request)
    document = encoded_line(public.to_dict())
    lines = job.places.results.read_bytes() if job.places.results.exists() else b""
    results = b"".join(_public_line(line, record.request, redactor) for line in lines.splitlines(keepends=True))
    published = parse_job(document, results, record.request.settings().digest())
    base = job_folder(record.name)
    parts = [_part(f"{base}/job.json", document), _part(f"{base}/results.jsonl", results)]
    for counted in published.counted:
        parts += _rollout_parts(job, counted, redactor, record.request, folder)
    return published, parts


def _machine_paths(job: Job) -> Iterator[str]:
    """Paths that say where a job was run."""
    places = (job.record.request.directory, str(job.folder.absolute()), str(Path.home()), str(Path.cwd()))
    yield from (place for place in places if place.startswith("/") and len(Path(place).parts) >= _SHALLOW)


def _public_request(request: JobRequest, redactor: Redactor) -> JobRequest:
    sources = tuple(source if ":" in source else Path(source).name or "." for source in request.sources)
    agent = redactor.text(request.agent)
    base = redactor.text(request.base_image) if request.base_image is not None else None
    others = {role: _public_player(player, redactor) for role, player in request.participants.items()}
    rotation = tuple(_public_player(player, redactor) for player in request.rotation)
    return replace(
        request,
        sources=sources,
        directory="",
        agent=agent,
        base_image=base,
        participants=others,
        rotation=rotation,
    )


def _public_player(player: Player, redactor: Redactor) -> Player:
    return replace(player, agent=redactor.text(player.agent))


def _public_path(path: str, request: JobRequest) -> str:
    """The path of a task below the source that it was found in."""
    for source in request.sources:
        start = source.rstrip("/")
        if path == start or path.startswith(f"{start}/"):
            return Path(start).name + path[len(start) :]
    return path if not Path(path).is_absolute() and ".." not in Path(path).parts else Path(path).name


def _public_result(document: bytes, request: JobRequest, redactor: Redactor) -> dict[str, object]:
    found = parse_json(document)
    result = Result.from_dict(found)
    public = replace(result, task=replace(result.task, path=_public_path(result.task.path, request)))
    written: dict[str, object] = redactor.data(public.to_dict())
    return {**written, **({"rollout": found["rollout"]} if "rollout" in found else {})}


def _public_line(line: bytes, request: JobRequest, redactor: Redactor) -> bytes:
    try:
        return encoded_line(_public_result(line, request, redactor))
    except ValueError:
        return line  # the examination names it


def _rollout_parts(
    job: Job, counted: Counted, redactor: Redactor, request: JobRequest, folder: Path
) -> Iterator[_Part]:
    places = job.places.rollout(counted.rollout)
    base = rollout_folder(job.record.name, counted.rollout)
    note = counted.result.notes.rescore
    newest = note.folder if note is not None else None
    for path in _kept(places, newest):
        name = f"{base}/{path.relative_to(places.path).as_posix()}"
        if path.name == "result.json":
            try:
                yield _part(name, encoded_line(_public_result(path.read_bytes(), request, redactor)))
                continue
            except ValueError:
                pass  # the examination names it
        yield _file_part(name, path, redactor, folder)


def _kept(places: RolloutFolder, newest: str | None) -> Iterator[Path]:
    """The regular files of a rollout that are published; of several verdicts the first and the newest."""
    for above, folders, files in os.walk(places.path):
        here = Path(above).relative_to(places.path)
        folders[:] = sorted(name for name in folders if _wanted(here / name, newest))
        for name in sorted(files):
            path = Path(above, name)
            if _wanted(here / name, newest) and stat.S_ISREG(path.lstat().st_mode):
                yield path


def _wanted(name: Path, newest: str | None) -> bool:
    if name.parts[0] not in PUBLISHED:
        return False
    return name.parts[0] != RESCORES or (newest is not None and f"{newest}/".startswith("/".join(name.parts[:2])))


def _part(name: str, content: bytes) -> _Part:
    return _Part(ListedFile(name, len(content), hashlib.sha256(content).hexdigest()), content)


def _file_part(name: str, path: Path, redactor: Redactor, folder: Path) -> _Part:
    """A file as it is, or a copy without what must not be published; archives are published as they were kept."""
    clean = redactor.stream()
    before, after, size = hashlib.sha256(), hashlib.sha256(), 0
    packed = path.suffix == _PACKED
    folder.mkdir(exist_ok=True)
    copy = folder / hashlib.sha256(name.encode()).hexdigest()
    with path.open("rb") as stream, copy.open("wb") as out:
        while chunk := stream.read(_CHUNK):
            before.update(chunk)
            size += len(chunk)
            if not packed:
                cleaned = clean.feed(chunk)
                after.update(cleaned)
                out.write(cleaned)
        rest = clean.finish()
        after.update(rest)
        out.write(rest)
    if packed or not clean.found:
        copy.unlink()
        return _Part(ListedFile(name, size, before.hexdigest()), str(path))
    return _Part(ListedFile(name, copy.stat().st_size, after.hexdigest()), str(copy))
