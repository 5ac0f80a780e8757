"""Links: outputs that are not files but lead to the verifier's files, to its processes or to references."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.daemons import hidden_files
from benchflow.evidence.audit.families.planting import LOGS

_NO_OUTPUT: Final = NotApplicable("Neither prompt nor verifier names a file that a solution would write.")
_FOLLOW: Final = "Refuse outputs that are not regular files, and copy them before they are compared"


def _linked(outputs: Sequence[str], target: str) -> str:
    to = shlex.quote(target)
    return "\n".join(
        f'{{ mkdir -p "$(dirname {place})" && ln -sfn {to} {place}; }} 2>/dev/null || :'
        for place in map(shlex.quote, outputs)
    )


def _same_file(outputs: Sequence[str], target: str) -> str:
    """Hard links, or symbolic ones where the system refuses those."""
    hard = "\n".join(f"ln -f {shlex.quote(target)} {place} 2>/dev/null || :" for place in map(shlex.quote, outputs))
    return f"{_linked(outputs, target)}\n{hard}"


def _empty(outputs: Sequence[str]) -> str:
    """The state without the trick: outputs that are there."""
    paths = " ".join(shlex.quote(path) for path in outputs)
    return f'for path in {paths}; do mkdir -p "$(dirname "$path")" && : > "$path"; done'


def _hidden(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.outputs:
        return _NO_OUTPUT
    hidden = hidden_files(seen)
    if not hidden:
        return NotApplicable("The verifier has no data files that an output could link to.")
    return [
        Attempt(f"makes outputs links to {target}", _linked(seen.outputs, target), without=_empty(seen.outputs))
        for target in hidden[:2]
    ]


def _processes(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.outputs:
        return _NO_OUTPUT
    return [
        Attempt(f"makes outputs links to {target}", _linked(seen.outputs, target), without=_empty(seen.outputs))
        for target in ("/proc/self/fd/3", "/dev/stdin")
    ]


def _rewards(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.outputs:
        return _NO_OUTPUT
    lines = [_linked(seen.outputs, f"{LOGS}/reward.txt")]
    return (Attempt("makes outputs links to the reward file", "\n".join(lines), without=_empty(seen.outputs)),)


def _references(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.outputs:
        return _NO_OUTPUT
    # A copy of what the prompt names may be the task itself.
    data = [path for path in seen.read if not path.endswith((".sh", ".py", ".js"))]
    references = [path for path in data if path not in seen.prompt][:3]
    if not references:
        return NotApplicable("The verifier compares with no data of the environment that the prompt does not name.")
    return [
        Attempt(
            f"makes outputs the same file as {target}",
            _same_file(seen.outputs, target),
            without=_empty(seen.outputs),
        )
        for target in references
    ]


def _folders(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    folders = list(dict.fromkeys(path.rpartition("/")[0] for path in seen.outputs))
    inner = [folder for folder in folders if folder not in ("", seen.workdir)]
    if not inner:
        return NotApplicable("No output lies in a folder of its own that could be a link.")
    return [
        Attempt(
            f"makes the folders of outputs links to {target}",
            "\n".join(f"rmdir {shlex.quote(folder)} 2>/dev/null" for folder in inner) + "\n" + _linked(inner, target),
            without="\n".join(f"mkdir -p {shlex.quote(folder)}" for folder in inner),
        )
        for target in ("/verifier", "/oracle")
    ]


HIDDEN_LINKS: Final = Family(
    "links-to-hidden-files",
    "Makes outputs links to where the verifier's expected results will be.",
    f"{_FOLLOW}; keep only digests of expected results.",
    _hidden,
)
PROCESS_LINKS: Final = Family(
    "links-to-open-files",
    "Makes outputs links to the open files of the program that reads them, so that it compares a file with itself.",
    f"{_FOLLOW}.",
    _processes,
)
REWARD_LINKS: Final = Family(
    "links-to-rewards",
    "Makes outputs links to the reward file, so that the verifier reads or writes its own verdict.",
    f"{_FOLLOW}; write the reward once, at the end.",
    _rewards,
)
REFERENCE_LINKS: Final = Family(
    "links-to-references",
    "Makes outputs the same file as a reference in the environment that the verifier compares with.",
    "Keep the reference in verifier/, not in the environment.",
    _references,
)
FOLDER_LINKS: Final = Family(
    "linked-folders",
    "Makes the folders of outputs links to the verifier's folder.",
    f"{_FOLLOW}, folders included.",
    _folders,
)
