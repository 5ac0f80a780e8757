"""What makes a task worthless although it is complete: answers that the agent can see, tests that depend on others.

Everything here is a warning, found without running anything and cheap enough for every check: files are compared by the
hashes that are known already, and texts are searched only in the places where a finding would mean something.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from benchflow.errors import Issue
from benchflow.task.filemap import FileEntry, FileMap
from benchflow.task.package import TaskPackage
from benchflow.task.package_layout import ALIASES

_SMALLEST: Final = 40
"""Smaller files are alike by chance: empty modules, one-line settings."""
_SEEN_BY_AGENT: Final = re.compile(r"environment/|prompts/|steps/[^/]+/workdir/")
_TEST_CODE: Final = re.compile(
    r"(^|/)(tests?[._-][^/]*|test[^/]*|[^/]+[._-]tests?\.\w+|run[-_]tests\.sh|conftest\.py)$"
)
_DOWNLOAD: Final = re.compile(
    rb"^[^#\n]*?(?<![\w'\"./-])((?:curl|wget)(?= [^\n]*https?://(?!localhost|127\.|0\.0\.0\.0|\$|\[))"
    rb"|uvx|npx|git clone|go get"
    rb"|(?:pip3?|uv pip|uv tool|pipx|npm|yarn|pnpm|apt|apt-get|apk|dnf|yum|gem|cargo|conda)(?: -\S+)* (?:install|add)"
    rb"|uv (?:add|sync|run)|playwright install)\b",
    re.MULTILINE,
)
"""Commands of a shell that fetch something; requests to services of the environment are none."""
_AGENTS_PATH: Final = rb"(/(?!tests?\b|verifier\b|logs\b|usr\b|opt\b|tmp\b)[\w./-]+)"
_PYTHON_LOADS: Final = re.compile(
    rb"^[^#\n]*\b(?:sys\.path\.(?:insert|append)|spec_from_file_location|run_path|SourceFileLoader)\("
    rb"[^\n#;]*?['\"]" + _AGENTS_PATH,
    re.MULTILINE,
)
_NODE_LOADS: Final = re.compile(
    rb"^[^\n]*?(?<![\w'\"./])(?:require\s*\(|import\s*\(|import\b|from\b)\s*['\"`]" + _AGENTS_PATH, re.MULTILINE
)
"""The path stands where the call or statement has its module: a sentence that says `import` loads nothing."""
_MODULE: Final = re.compile(r"\b([A-Za-z_]\w*)\.py\b")
_IMPORT: Final = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_SHELL: Final = (".sh", ".bash")
_CODE: Final = (".py", ".js", ".mjs", ".ts")
_PLAIN_LINE: Final = 24
"""Shorter lines of a solution are alike by chance."""
_MOST_OF_IT: Final = 0.6


def check_worth(package: TaskPackage) -> Iterator[Issue]:
    """Warnings about what an agent could use instead of solving the task, and about tests that others can break."""
    files = package.files
    verifier, oracle = _parts(files, 0), _parts(files, 1)
    yield from _check_copies(files, verifier, oracle)
    yield from _check_prompt(package, oracle)
    yield from _check_tests(package, verifier)
    yield from _check_nested(files)


class Download(NamedTuple):
    """Where a test downloads something, and by which words."""

    file: str
    line: int
    word: str


def download_of_tests(package: TaskPackage) -> Download | None:
    """The first download in a shell script of the verifier."""
    return _download(_parts(package.files, 0))


def _download(verifier: dict[str, FileEntry]) -> Download | None:
    for path, entry in verifier.items():
        found = _DOWNLOAD.search(entry.data) if entry.data is not None and path.endswith(_SHELL) else None
        if found is not None:
            return Download(path, _line(found.string, found.start(1)), found[1].decode())
    return None


def _parts(files: FileMap, which: int) -> dict[str, FileEntry]:
    """The files of the verifier or of the oracle, of the task and of its steps."""
    names = tuple(f"{name}/" for name in ALIASES[which])
    found = {path: entry for path, entry in files.files.items() if path.startswith(names)}
    if "steps" in files.folders:
        inner = re.compile(rf"steps/[^/]+/(?:{'|'.join(ALIASES[which])})/")
        found |= {path: entry for path, entry in files.files.items() if inner.match(path)}
    return found


def _check_copies(files: FileMap, verifier: dict[str, FileEntry], oracle: dict[str, FileEntry]) -> Iterator[Issue]:
    """Files of the solution, and tests, that the agent finds in its environment byte by byte."""
    visible: dict[bytes, str] = {}
    for path, entry in files.files.items():
        if entry.size >= _SMALLEST and _SEEN_BY_AGENT.match(path):
            visible.setdefault(entry.digest, path)
    if not visible:
        return
    for code, what, hidden in (
        ("solution-exposed", "the solution", oracle),
        ("tests-exposed", "a test that scores", {path: e for path, e in verifier.items() if _TEST_CODE.search(path)}),
    ):
        copies = [(path, visible[entry.digest]) for path, entry in hidden.items() if entry.digest in visible]
        if copies:
            path, copy = copies[0]
            more = f" (and {len(copies) - 1} more)" if len(copies) > 1 else ""
            message = f"{copy} is a copy of {path}: the agent can read {what}{more}"
            yield Issue(code, "warning", "", message, copy)


def _check_prompt(package: TaskPackage, oracle: dict[str, FileEntry]) -> Iterator[Issue]:
    """A solution whose lines are for the most part in the prompt."""
    prompt = package.instruction or ""
    for path, entry in oracle.items():
        if not path.endswith("/solve.sh") or entry.data is None:
            continue
        text = prompt
        if path.startswith("steps/"):
            own = package.files.files.get(f"{path.rsplit('/', 2)[0]}/instruction.md")
            text = own.data.decode("utf-8", "replace") if own is not None and own.data is not None else ""
        lines = {line.strip() for line in entry.data.decode("utf-8", "replace").splitlines()}
        telling = [line for line in lines if len(line) >= _PLAIN_LINE and not line.startswith("#")]
        shared = [line for line in telling if line in text]
        if shared and len(shared) >= _MOST_OF_IT * len(telling):
            message = f"the prompt contains {len(shared)} of {len(telling)} lines of {path}: it gives the answer away"
            yield Issue("oracle-in-prompt", "warning", "", message, path)


def _check_tests(package: TaskPackage, verifier: dict[str, FileEntry]) -> Iterator[Issue]:
    """Tests that need the network, or that run the agent's code in their own process."""
    loads = None
    own = {path.rsplit("/", 1)[-1].removesuffix(".py") for path in verifier if path.endswith(".py")}
    named = set(_MODULE.findall(package.instruction or "")) - own
    for path, entry in verifier.items():
        if loads is None and path.endswith(_CODE) and entry.data is not None:
            loads = _loaded(path, entry.data, named)
    download = _download(verifier)
    if download is not None:
        message = f"{download.file} downloads ('{download.word}'): scoring needs the network, and fails without it"
        yield Issue("tests-download", "warning", "", message, download.file, download.line)
    if loads is not None:
        path, data, place, word = loads
        message = (
            f"{path} loads the agent's code ({word.decode('utf-8', 'replace')}) into its own process, "
            "where that code can change the verdict"
        )
        yield Issue("tests-import-work", "warning", "", message, path, _line(data, place))


def _loaded(path: str, data: bytes, named: set[str]) -> tuple[str, bytes, int, bytes] | None:
    """Where a test loads a module from outside its folder, or one that the prompt asks for."""
    for found in (_PYTHON_LOADS if path.endswith(".py") else _NODE_LOADS).finditer(data):
        if not _is_quoted(path, data, found.start(1)):
            return path, data, found.start(1), found[1]
    if named and path.endswith(".py"):
        for imported in _IMPORT.finditer(data):
            if imported[1].decode() in named and not _is_quoted(path, data, imported.start(1)):
                return path, data, imported.start(1), imported[1]
    return None


def _is_quoted(path: str, data: bytes, place: int) -> bool:
    """Whether a place is in a text over several lines: a program that the test gives to another process."""
    if not path.endswith(".py"):
        return False
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError):
        return False
    line = _line(data, place)
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return any(text.lineno < line <= (text.end_lineno or text.lineno) for text in texts)


def _line(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


def _check_nested(files: FileMap) -> Iterator[Issue]:
    """Packages inside the package: part of it, and not tasks of their own."""
    nested = [path for path in files.files if path.endswith(("/task.md", "/task.toml")) and _is_package(files, path)]
    if nested:
        folder = nested[0].rpartition("/")[0]
        more = f" (and {len(nested) - 1} more)" if len(nested) > 1 else ""
        message = f"{folder}/ looks like a separate package{more}; it is part of this one and is not checked as a task"
        yield Issue("nested-package", "warning", "", message, nested[0])


def _is_package(files: FileMap, path: str) -> bool:
    folder = path.rpartition("/")[0]
    parts = ("environment", *ALIASES[0])
    return any(f"{folder}/{name}" in files.folders for name in parts) or f"{folder}/instruction.md" in files
