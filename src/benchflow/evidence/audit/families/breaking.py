"""Breaking the verifier: outputs that it cannot read or walk, for verifiers in which an error counts as a pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.forging import NO_TARGETS, mentions, quoted
from benchflow.evidence.audit.families.outputs import writing

_DEPTH: Final = 30
_NAME: Final = 200
"""Together deeper than the longest path that a program can open."""
_NESTED: Final = 100_000
_EACH: Final = (
    'for path in {paths}; do mkdir -p "$(dirname "$path")"; rm -rf "$path"; {command}; done 2>/dev/null\ntrue'
)


def _unreadable(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.targets:
        return NotApplicable(NO_TARGETS)
    paths = quoted(seen.targets)
    tries = {
        "makes folders of the outputs": 'mkdir -p "$path"',
        "makes links to nothing of the outputs": 'ln -s /nonexistent/zz "$path"',
        "writes bytes that are not text into the outputs": "printf '\\377\\376\\000\\200x' > \"$path\"",
        "makes outputs that nobody may read": 'echo x > "$path"; chmod 000 "$path"',
    }
    without = writing(dict.fromkeys(seen.targets, "x\n"))
    return [
        Attempt(label, _EACH.format(paths=paths, command=command), without=without, bound="known-bad")
        for label, command in tries.items()
    ]


def _nested(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    documents = [path for path in seen.targets if PurePosixPath(path).suffix in (".json", ".xml", ".html", ".yaml")]
    found = []
    if documents:
        command = f"head -c {_NESTED} /dev/zero | tr '\\0' '[' > \"$path\""
        without = writing(dict.fromkeys(documents, "[\n"))
        label = "writes documents that are nested too deeply for a parser"
        script = _EACH.format(paths=quoted(documents), command=command)
        found.append(Attempt(label, script, without=without, bound="known-bad"))
    if mentions(seen, r"walk\(|rglob|glob\(|\bfind\b|rmtree|copytree|cp -|\bls -|\btar\b|\bdu\b|grep -\w*r"):
        folders = dict.fromkeys([seen.workdir, *(path for path in seen.read if path not in seen.files)])
        ones = writing(dict.fromkeys(seen.targets, "x\n"))
        lines = [
            f"( cd {quoted([folder])} && long=$(head -c {_NAME} /dev/zero | tr '\\0' d) && i=0\n"
            f'while [ $i -lt {_DEPTH} ]; do mkdir "$long" && cd "$long" || break; i=$((i+1)); done ) 2>/dev/null'
            for folder in folders
        ]
        found.append(Attempt("leaves folders too deep to walk", "\n".join([ones, *lines, "true"]), without=ones))
    return found or NotApplicable("The verifier neither parses a document of a solution nor walks a folder.")


_ERRORS: Final = (
    "Count every error while reading an output as a failure: start from reward 0 and raise it at the end only."
)
UNREADABLE_OUTPUT: Final = Family(
    "unreadable-output",
    "Makes outputs that cannot be read: folders, dangling links, bytes that are not text, files without permissions.",
    _ERRORS,
    _unreadable,
)
BOTTOMLESS_OUTPUT: Final = Family(
    "bottomless-output",
    "Leaves documents and folders that are nested too deeply for the verifier's parser or walk.",
    _ERRORS,
    _nested,
)
