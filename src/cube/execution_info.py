"""Heavy per-task data on disk: one JSON file per task, written by `install()`, read on the worker.

Task ids come from data files, so an id that points outside the folder is refused.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

LONGEST_NAME: Final = 250
"""Maximum bytes of a file name before `.json`, valid on all common file systems."""


def info_file(folder: Path, task_id: str) -> Path:
    """The file of a task below `folder`; ids may contain `/` but must not leave the folder."""
    parts = PurePosixPath(task_id).parts
    if (
        not parts
        or task_id.startswith("/")
        or any(part in (".", "..") or "\0" in part or "\\" in part for part in parts)
    ):
        raise ValueError(f"Task id {task_id!r} is not a valid file name: empty or outside the cache folder.")
    if any(len(part.encode(errors="surrogatepass")) > LONGEST_NAME for part in parts):
        raise ValueError(f"Task id '{task_id[:40]}…' is not a valid file name: a part exceeds {LONGEST_NAME} bytes.")
    return folder.joinpath(*parts[:-1], f"{parts[-1]}.json")


def read_info(folder: Path, task_ids: tuple[str, ...]) -> dict[str, Any]:
    """The data of the first of `task_ids` that has a file; otherwise a `RuntimeError` names the command to run."""
    for task_id in task_ids:
        path = info_file(folder, task_id)
        try:
            data = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except ValueError as error:
            raise RuntimeError(f"{path} is damaged ({error}). Run `cube install <bench>` to write it again.") from error
        if not isinstance(data, dict):
            raise RuntimeError(f"{path} must contain a JSON object. Run `cube install <bench>` to write it again.")
        return data
    raise RuntimeError(
        f"No execution data for task_id='{task_ids[0]}' at {info_file(folder, task_ids[0])}. Run `cube install "
        f"<bench>` (or `<OwnerBenchmarkConfig>.install()`) to populate the per-task execution cache on this worker."
    )


def write_info(folder: Path, task_id: str, data: Mapping[str, Any]) -> Path:
    """Write the data of a task atomically, and return its path."""
    path = info_file(folder, task_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o644)  # the user who installs may not be the one who runs the tasks
            json.dump(data, stream, ensure_ascii=False)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise
    return path
