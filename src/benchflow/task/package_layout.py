"""Which folders of a package are used, whether aliases agree, and whether declared assets match the files.

Selection is by existence alone: `verifier/` before `tests/`, `oracle/` before `solution/`, with no fallback
from an empty or broken native folder. Alias trees are equal when their file maps are equal. Hidden assets must
lie where the agent cannot see them; pinned ones must have their SHA-256. The content digest leaves out `evidence/` and
the key `benchflow.evidence`, so that proving a package does not make another package of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

import yaml

from benchflow.task.config.namespace import Asset, Namespace
from benchflow.task.config.parsed_record import IssueLog
from benchflow.task.document.markdown import MarkdownError, decode, split_frontmatter
from benchflow.task.document.task_document import TASK_MD
from benchflow.task.filemap import FileMap, digest_of

TASK_TOML: Final = "task.toml"
INSTRUCTION: Final = "instruction.md"
ALIASES: Final = (("verifier", "tests"), ("oracle", "solution"))
_PARTS: Final = frozenset(
    {
        "task.md",
        "task.toml",
        "instruction.md",
        "verifier",
        "tests",
        "oracle",
        "solution",
        "environment",
        "prompts",
        "steps",
    }
)
EVIDENCE: Final = "evidence"
_NAMESPACE: Final = "benchflow"
_MAP: Final = "tag:yaml.org,2002:map"
_STR: Final = "tag:yaml.org,2002:str"
_FILES: Final = frozenset({"task.md", "task.toml", "instruction.md"})
SOURCE_FOLDERS: Final = ("environment", "oracle", "solution", "verifier", "tests", "prompts", "steps")


def select(files: FileMap, native: str, legacy: str) -> str | None:
    """The folder that is used, or None when neither exists."""
    if native in files.folders or native in files.links or native in files:
        return native
    return legacy if legacy in files.folders or legacy in files.links or legacy in files else None


def check_parts(files: FileMap, problems: IssueLog) -> None:
    """The parts of a package must be files or folders, as named, and not links."""
    if not files.links and not _PARTS & files.files.keys() - _FILES and not _FILES & files.folders:
        return
    for part in sorted(link for link in files.links if link in _PARTS or _is_document(link)):
        if part in ("tests", "solution") and files.links[part].rstrip("/") in ("verifier", "oracle"):
            continue
        problems.error("linked-part", part, f"{part} is a link; it must be a real file or folder")
    for part in sorted(_PARTS):
        is_file = part in _FILES
        if (is_file and part in files.folders) or (not is_file and part in files):
            problems.error("wrong-part", part, f"{part} must be a {'file' if is_file else 'folder'}")


def _is_document(link: str) -> bool:
    """Whether a link is in a place where text is read."""
    return link.startswith("prompts/") or link.endswith(("/verifier.md", "/instruction.md"))


def check_aliases(files: FileMap, problems: IssueLog) -> None:
    """Alias trees that both exist must contain the same files."""
    if not files.folders & {"tests", "solution", "steps"}:
        return
    pairs = [*ALIASES]
    steps = {path.split("/")[1] for path in files.folders if path.startswith("steps/")}
    pairs += [
        (f"steps/{step}/{native}", f"steps/{step}/{legacy}") for step in sorted(steps) for native, legacy in ALIASES
    ]
    for native, legacy in pairs:
        if native not in files.folders or legacy not in files.folders:
            continue
        ours, theirs = files.hashes(native), files.hashes(legacy)
        if ours != theirs:
            differing = sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path))
            message = f"{native}/ and {legacy}/ differ in {', '.join(differing[:3])}"
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""  # three are shown
            problems.error("alias-drift", f"{native}|{legacy}", message + more)


def source_hashes(files: FileMap) -> dict[str, str]:
    """Path -> SHA-256 of the files that define a task."""
    prefixes = tuple(f"{folder}/" for folder in SOURCE_FOLDERS)
    return {path: entry.sha256 for path, entry in files.files.items() if path in _FILES or path.startswith(prefixes)}


HIDDEN: Final = frozenset({"hidden_verifier", "hidden_oracle", "runtime_secret", "evidence_only"})
AGENT_FOLDERS: Final = ("environment", "prompts")
HIDDEN_FOLDERS: Final = ("verifier", "tests", "oracle", "solution", "evidence")
_STEP_WORKDIR: Final = re.compile(r"steps/[^/]+/(workdir|instruction\.md)(/|$)")
_ELSEWHERE: Final = frozenset({"external_dataset", "runtime_secret"})
"""Visibilities whose content need not be in the package."""


def check_assets(namespace: Namespace, files: FileMap, problems: IssueLog) -> None:
    """Hidden assets must be outside what the agent sees; pinned assets must match their digest."""
    seen_by_agent = [*AGENT_FOLDERS, *(asset.path for asset in namespace.assets if asset.visibility == "agent")]
    for index, asset in enumerate(namespace.assets):
        path = f"benchflow.assets[{index}]"
        _check_visibility(asset, path, seen_by_agent, problems)
        _check_presence(asset, path, files, problems)
    for index, given in enumerate(namespace.verifier.inputs if namespace.verifier else ()):
        path = f"benchflow.verifier.inputs[{index}]"
        if given.visibility in HIDDEN:
            _check_hidden(given.path, given.visibility, path, seen_by_agent, problems)
        of_package = any(_within(given.path, folder) for folder in HIDDEN_FOLDERS)
        if of_package and given.path not in files and given.path.rstrip("/") not in files.folders:
            problems.error("missing-asset", f"{path}.path", f"the input {given.path} is not in the package")
    for index, image in enumerate(namespace.provenance.images if namespace.provenance else ()):
        source = image.build_source
        if source is not None and source.sha256 is not None:
            path = f"benchflow.provenance.images[{index}].build_source"
            _check_pin(source.path, source.sha256, path, files, problems)


def _check_visibility(asset: Asset, path: str, seen_by_agent: list[str], problems: IssueLog) -> None:
    where = f"{path}.visibility"
    if asset.visibility in HIDDEN:
        if _check_hidden(asset.path, asset.visibility, path, seen_by_agent, problems):
            return
        if asset.mount_phase in ("agent", "environment"):
            message = f"{asset.path} is {asset.visibility}, but is mounted for the {asset.mount_phase} phase"
            problems.error("exposed-asset", f"{path}.mount_phase", message)
    elif asset.visibility == "agent":
        hidden = next((folder for folder in HIDDEN_FOLDERS if _within(asset.path, folder)), None)
        if hidden is not None:
            message = f"{asset.path} is meant for the agent, but is in {hidden}/, which the agent cannot see"
            problems.error("exposed-asset", where, message)


def _check_hidden(file: str, visibility: str, path: str, seen_by_agent: list[str], problems: IssueLog) -> bool:
    """Whether a hidden file is where the agent can see it, which is reported."""
    exposed = next((seen for seen in seen_by_agent if _overlap(file, seen)), None)
    if exposed is None and _STEP_WORKDIR.match(file):
        exposed = "the working folder of a step"
    if exposed is not None:
        message = f"{file} is {visibility}, but is in {exposed}, which the agent can see"
        problems.error("exposed-asset", f"{path}.visibility", message)
    return exposed is not None


def _check_presence(asset: Asset, path: str, files: FileMap, problems: IssueLog) -> None:
    if asset.path in files or asset.path in files.folders:
        if asset.sha256 is not None:
            _check_pin(asset.path, asset.sha256, path, files, problems)
    elif not asset.generated and asset.visibility not in _ELSEWHERE:
        problems.error("missing-asset", f"{path}.path", f"the asset {asset.path} is not in the package")


def _check_pin(file: str, pinned: str, path: str, files: FileMap, problems: IssueLog) -> None:
    actual = content_hash(files, file)
    if actual is None:
        problems.error("missing-asset", f"{path}.path", f"{file} is pinned but is not in the package")
    elif actual != pinned:
        problems.error("pin-mismatch", f"{path}.sha256", f"{file} has the SHA-256 {actual}, but {pinned} is pinned")


def content_hash(files: FileMap, path: str) -> str | None:
    """The hash that a pin of a file or folder holds; for a folder, the digest of its file map."""
    if path in files:
        return files.files[path].sha256
    if path in files.folders:
        return digest_of(files.hashes(path)).removeprefix("sha256:")
    return None


def _overlap(path: str, other: str) -> bool:
    return _within(path, other) or _within(other, path)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def content_digest(files: FileMap, outside: Mapping[str, str]) -> str:
    """The content digest of a package; `outside` are hashes of files that lie beside it and belong to it."""
    hashes = {path: entry.sha256 for path, entry in files.files.items() if not path.startswith(f"{EVIDENCE}/")}
    document = files.files.get(TASK_MD)
    if document is not None and document.data is not None and EVIDENCE.encode() in document.data:
        hashes[TASK_MD] = sha256(without_evidence(document.data)).hexdigest()
    return digest_of({**hashes, **outside})


def without_evidence(data: bytes) -> bytes:
    """The bytes of a `task.md` without the lines of `benchflow.evidence`, all others as they are.

    The lines are left out only if the rest says exactly what the document says without that key. Otherwise (an anchor
    in it is used elsewhere, the key shares a line with another, the text cannot be read) the document is taken whole.
    """
    try:
        front = split_frontmatter(decode(data))
        root = _composed(front.yaml)
        lines = _evidence_lines(front.yaml, root)
        if lines is None:
            return data
        all_lines = data.splitlines(keepends=True)  # of bytes: ends lines where `decode` does, and nowhere else
        first, last = lines
        while last > first and not all_lines[last].strip():
            last -= 1
        rest = b"".join(all_lines[:first] + all_lines[last + 1 :])
        front_of_rest = split_frontmatter(decode(rest))
        sound = front_of_rest.body == front.body and _same(_composed(front_of_rest.yaml), _expected(root))
    except (MarkdownError, yaml.YAMLError, RecursionError, ValueError):
        return data
    return rest if sound else data


def _composed(text: str) -> Any:
    return yaml.compose(text, Loader=yaml.CSafeLoader)


def _evidence_lines(text: str, root: Any) -> tuple[int, int] | None:
    """The first and the last line of the evidence in its document, or of the namespace if it has nothing else.

    Lines are counted by line feeds up to a position: YAML also counts U+0085, U+2028 and U+2029 as line breaks.
    """
    namespace = _entry(root, _NAMESPACE)
    evidence = _entry(namespace[1], EVIDENCE) if namespace is not None else None
    if namespace is None or evidence is None:
        return None
    key, value = namespace if len(namespace[1].value) == 1 else evidence
    first = key.start_mark.index
    last = max([first, *_ends(value)])
    opening = 1  # the line that opens the frontmatter
    return opening + text.count("\n", 0, first), opening + text.count("\n", 0, last)


def _entry(node: Any, key: str) -> tuple[Any, Any] | None:
    """The one entry of a plain mapping with this key."""
    if not isinstance(node, yaml.MappingNode) or node.tag != _MAP:
        return None
    found = [(name, value) for name, value in node.value if name.tag == _STR and name.value == key]
    return found[0] if len(found) == 1 else None


def _ends(node: Any) -> Iterator[int]:
    """Where the scalars and flow collections of a value end; block collections end where the next key begins."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        yield max(node.start_mark.index, node.end_mark.index - 1)
        return
    for item in node.value:
        for part in item if isinstance(item, tuple) else (item,):
            yield from _ends(part)


def _expected(root: Any) -> Any:
    """The document without the evidence, and without the namespace if it has nothing else.

    The nodes are new: what an alias repeats elsewhere is not evidence there and stays.
    """
    entries = []
    for name, value in root.value:
        kept = value
        if name.tag == _STR and name.value == _NAMESPACE:
            rest = [(key, item) for key, item in value.value if key.value != EVIDENCE]
            if not rest:
                continue
            kept = yaml.MappingNode(value.tag, rest)
        entries.append((name, kept))
    return yaml.MappingNode(root.tag, entries)


def _same(one: Any, other: Any) -> bool:
    """Whether two documents say the same. Repeated nodes are compared once, so aliases cannot make this slow."""
    pending, seen = [(one, other)], set()
    while pending:
        left, right = pending.pop()
        if (id(left), id(right)) in seen:
            continue
        seen.add((id(left), id(right)))
        if type(left) is not type(right) or left.tag != right.tag:
            return False
        if isinstance(left, yaml.ScalarNode):
            if (left.value, left.style) != (right.value, right.style):
                return False
        elif len(left.value) != len(right.value):
            return False
        elif isinstance(left, yaml.MappingNode):
            for ours, theirs in zip(left.value, right.value, strict=True):
                pending += zip(ours, theirs, strict=True)
        else:
            pending += zip(left.value, right.value, strict=True)
    return True
