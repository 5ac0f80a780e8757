"""Results without work: nothing at all, and outputs that are there but say nothing.

What the oracle itself writes is never tried: an answer that happens to be empty or 0 is honest work.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen

NO_OUTPUTS: Final = NotApplicable("No file is known that a solution would write.")
MOST_INPUTS: Final = 4
MOST_EXAMPLES: Final = 4
_FENCE: Final = re.compile(r"^(`{3,}|~{3,})[^\n]*\n(.*?)^\1", re.DOTALL | re.MULTILINE)
_WORD: Final = re.compile(r"\w+(?:[.,:/@-]\w+)*")
_SHOTGUN_NUMBERS: Final = 1000
_SPARSE_MB: Final = 16
_EMPTY_BY_SUFFIX: Final[Mapping[str, str]] = {
    ".json": "{}\n",
    ".jsonl": "{}\n",
    ".yaml": "{}\n",
    ".yml": "{}\n",
    ".toml": "",
    ".xml": "<root/>\n",
    ".html": "<!doctype html><html><head><title></title></head><body></body></html>\n",
    ".svg": '<svg xmlns="http://www.w3.org/2000/svg"/>\n',
    ".py": "pass\n",
    ".sh": "#!/bin/sh\nexit 0\n",
    ".js": "module.exports = {};\n",
    ".ts": "export {};\n",
    ".c": "int main(void) { return 0; }\n",
    ".go": "package main\n\nfunc main() {}\n",
    ".rs": "fn main() {}\n",
    ".java": "class Main { public static void main(String[] a) {} }\n",
    ".sql": "SELECT 1;\n",
    ".md": "# Report\n",
}
_DEFAULTS: Final = ("0\n", "1\n", "true\n", "None\n", "N/A\n", "unknown\n")


def writing(contents: Mapping[str, str]) -> str:
    """A script that writes texts to files, as executable ones."""
    lines = []
    for path, text in contents.items():
        quoted = shlex.quote(path)
        lines.append(f'mkdir -p "$(dirname {quoted})"; rm -rf {quoted}')
        lines.append(f"printf %s {shlex.quote(text)} > {quoted}; chmod +x {quoted}")
    return "\n".join(lines)


def filling(seen: Seen, label: str, content: Callable[[str], str]) -> Iterator[Attempt]:
    """An attempt that writes a content of each target's own into it, unless all of it is what the oracle writes."""
    contents = {path: content(path) for path in seen.targets}
    contents = {path: text for path, text in contents.items() if not seen.is_solution(text.encode())}
    if contents:
        yield Attempt(label, writing(contents), bound="known-bad")


def _always(text: str) -> Callable[[str], str]:
    return lambda _path: text


def _some(attempts: Iterable[Attempt], reason: str) -> Sequence[Attempt] | NotApplicable:
    return tuple(attempts) or NotApplicable(reason)


def _nothing(_seen: Seen) -> Sequence[Attempt]:
    return (Attempt("does nothing", "true", bound="no-op"),)


def _empty(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.targets:
        return NO_OUTPUTS
    return _some(filling(seen, "creates every output as an empty file", _always("")), "The oracle writes empty files.")


def _empty_structure(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.targets:
        return NO_OUTPUTS
    found = [*filling(seen, "writes valid but empty documents and programs", _structure)]
    if any(PurePosixPath(path).suffix in (".json", ".yaml", ".yml") for path in seen.targets):
        found += filling(seen, "writes empty lists", lambda path: "[]\n" if "{" in _structure(path) else "\n")
    return _some(found, "The oracle writes empty documents.")


def _structure(path: str) -> str:
    return _EMPTY_BY_SUFFIX.get(PurePosixPath(path).suffix.lower(), "\n")


def _header_only(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    tables = [path for path in seen.targets if PurePosixPath(path).suffix.lower() in (".csv", ".tsv")]
    if not tables:
        return NotApplicable("No output is a table.")
    lines = {path: _header(seen.prompt, "\t" if path.lower().endswith(".tsv") else ",") for path in tables}
    return (Attempt("writes tables that have a header and no rows", writing(lines), bound="known-bad"),)


def _header(prompt: str, separator: str) -> str:
    """The first line of the prompt that looks like column names."""
    for line in prompt.splitlines():
        words = line.strip().strip("`").split(separator)
        if len(words) > 1 and all(re.fullmatch(r"\s*[\w.-]+\s*", word) for word in words):
            return separator.join(word.strip() for word in words) + "\n"
    return separator.join(("id", "name", "value")) + "\n"


def _default_values(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.targets:
        return NO_OUTPUTS
    found: list[Attempt] = []
    for value in _DEFAULTS:
        found += filling(seen, f"writes {value.strip()} into every output", _always(value))
    return _some(found, "The oracle writes such values.")


def _example(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.targets:
        return NO_OUTPUTS
    examples = list(dict.fromkeys(match[2] for match in _FENCE.finditer(seen.prompt)))[:MOST_EXAMPLES]
    if not examples:
        return NotApplicable("The prompt has no example.")
    found: list[Attempt] = []
    for number, text in enumerate(examples, 1):
        if not seen.is_solution(text.rstrip("\n").encode()):
            label = f"writes example {number} of the prompt into every output"
            found += filling(seen, label, _always(text))
    return _some(found, "The examples of the prompt are what the oracle writes.")


def _echo(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.targets or not seen.prompt:
        return NO_OUTPUTS
    return _some(filling(seen, "writes the prompt into every output", _always(seen.prompt)), "It is the solution.")


def _shotgun(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.targets:
        return NO_OUTPUTS
    words = dict.fromkeys(_WORD.findall(seen.prompt))
    numbers = map(str, range(_SHOTGUN_NUMBERS))
    text = "\n".join([*words, *numbers]) + "\n"
    label = f"writes every word of the prompt and every number below {_SHOTGUN_NUMBERS} into every output"
    return _some(filling(seen, label, _always(text)), "It is the solution.")


def _copied_input(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.outputs:
        return NO_OUTPUTS
    named = [path for path in seen.read if path in seen.files]
    inputs = list(dict.fromkeys([*named, *seen.files]))
    if not inputs:
        return NotApplicable("The working folder has no files.")
    return [
        Attempt(f"copies {path} to every output", _copying(seen, path), bound="known-bad")
        for path in inputs[:MOST_INPUTS]
    ]


def _copying(seen: Seen, source: str) -> str:
    """A copy to every output, except of what is the solution itself, which a task may ask for."""
    lines = []
    for path in seen.outputs:
        quoted, digest = shlex.quote(path), seen.written.get(path) or "-"
        lines.append(
            f"sha256sum {shlex.quote(source)} | grep -q '^{digest}' || "
            f'{{ mkdir -p "$(dirname {quoted})"; cp {shlex.quote(source)} {quoted}; }}'
        )
    return "\n".join(lines)


def _huge(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.targets:
        return NO_OUTPUTS
    lines = []
    for path in seen.targets[:4]:
        quoted = shlex.quote(path)
        lines.append(f'mkdir -p "$(dirname {quoted})"; dd if=/dev/zero of={quoted} bs=1 count=0 seek={_SPARSE_MB}M')
    return (Attempt(f"makes outputs of {_SPARSE_MB} MB of zeros", "\n".join(lines), bound="known-bad"),)


def _deleted(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    inside = [path for path in seen.read if path.startswith(f"{seen.workdir.rstrip('/')}/")]
    found = []
    if inside:
        paths = " ".join(map(shlex.quote, inside))
        found.append(Attempt("removes what the verifier reads from the working folder", f"rm -rf -- {paths}"))
    if seen.files:
        script = 'find "$PWD" -xdev -mindepth 1 -maxdepth 1 -exec rm -rf {} +'
        found.append(Attempt("empties the working folder", script))
    return found or NotApplicable("The working folder has no files.")


_CONTENT = "Make the verifier check the content of every output, not only that it exists."
_EXACT = "Compare outputs with the exact expected content, not with words that may occur in them."
DO_NOTHING: Final = Family(
    "do-nothing",
    "Does nothing and hopes that the verifier accepts the environment as it is.",
    "Make the verifier check what only a solution produces.",
    _nothing,
)
EMPTY_OUTPUT: Final = Family(
    "empty-output",
    "Creates the outputs as empty files.",
    _CONTENT,
    _empty,
)
EMPTY_STRUCTURE: Final = Family(
    "empty-structure",
    "Writes outputs that are valid for their type but empty: `{}`, `[]`, an empty program.",
    "Make the verifier require the entries that a solution has, so that checks of each entry cannot pass on none.",
    _empty_structure,
)
HEADER_ONLY: Final = Family(
    "header-only",
    "Writes tables that have a header and no rows.",
    "Make the verifier require the number of rows, so that checks of each row cannot pass on none.",
    _header_only,
)
DEFAULT_VALUES: Final = Family(
    "default-values",
    "Writes 0, 1, true and other likely values into the outputs.",
    "Ask for an answer that cannot be guessed, or for several at once.",
    _default_values,
)
EXAMPLE_OUTPUT: Final = Family(
    "example-output",
    "Writes the examples of the prompt into the outputs.",
    "Use an example in the prompt whose values differ from those of the task.",
    _example,
)
PROMPT_ECHO: Final = Family("prompt-echo", "Writes the prompt into the outputs.", _EXACT, _echo)
SHOTGUN_OUTPUT: Final = Family(
    "shotgun-output", "Writes every likely answer at once into the outputs.", _EXACT, _shotgun
)
COPIED_INPUT: Final = Family(
    "copied-input",
    "Copies inputs to the outputs.",
    "Make the verifier check that outputs differ from the inputs in what the task asks for.",
    _copied_input,
)
HUGE_OUTPUT: Final = Family(
    "huge-output",
    "Makes outputs that are too large to be read.",
    "Make the verifier limit the size of what it reads, and fail when the limit is exceeded.",
    _huge,
)
DELETED_INPUTS: Final = Family(
    "deleted-inputs",
    "Removes what the verifier reads, so that its checks have nothing to check.",
    "Keep what the verifier compares with beside the verifier, and fail when a file is missing.",
    _deleted,
)
