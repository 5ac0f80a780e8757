"""Answers that are left where the agent can read them: in the image, the workspace, git, variables and leftovers.

Scripts hold sizes, hashes and names of what they look for, never the answer: what scores was found inside. A file that
the prompt names is an input, and copying it may be what the task asks for.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.outputs import writing

MOST_COMMITS: Final = 4
MOST_VARIABLES: Final = 6
_SMALLEST: Final = 40
"""Smaller files are alike by chance."""
_MOST_FILES: Final = 40
_MOST_HASHED: Final = 4000
_TELLING: Final = 32
_PRUNE: Final = (
    "-path /proc -o -path /sys -o -path /dev -o -path /usr/lib -o -path /usr/share -o -path /var/lib/dpkg "
    "-o -path /usr/include -o -name '.agent-*'"
)
_ROOTS: Final = '"$PWD" /app /data /home /mnt /opt /root /srv /tmp /var/tmp /workspace /build /src'
_SECRET: Final = re.compile(r"ANSWER|EXPECT|FLAG|GOLD|KEY|ORACLE|PASS|RESULT|SECRET|SOLUTION|TOKEN", re.IGNORECASE)
_SOLUTION_NAME: Final = re.compile(r"\b(?:(?:solve|solution)[\w-]*\.(?:sh|py)|[\w-]+\.patch)\b")
_CODE: Final = (".bash", ".cfg", ".ini", ".js", ".md", ".py", ".sh", ".toml", ".ts", ".yaml", ".yml")
_RUN_FOUND: Final = """\
  case "$found" in
    *.py) python3 "$found" ;;
    *.js|*.mjs) node "$found" ;;
    *.patch|*.diff) git apply "$found" || patch -p1 < "$found" ;;
    *) bash "$found" || sh "$found" ;;
  esac
"""
_COPY_FOUND: Final = '  mkdir -p "$(dirname "$target")" && cp "$found" "$target"\n'


def _words(items: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, items))


def _pattern(paths: Iterable[str]) -> str:
    """A pattern of `case` that is one of these paths."""
    return "|".join(map(shlex.quote, paths)) or "''"


def _same_content(contents: Iterable[str]) -> str:
    """A command that prints the files whose content is one of these, compared by size and hash."""
    data = [text.encode() for text in contents]
    data = [item for item in data if len(item) >= _SMALLEST][:_MOST_FILES]
    sizes = " -o ".join(f"-size {size}c" for size in sorted({len(item) for item in data}))
    hashes = "|".join(sorted({hashlib.sha256(item).hexdigest() for item in data}))
    if not data:
        return ""
    return (
        f'find / "$PWD" -xdev \\( {_PRUNE} \\) -prune -o -type f \\( {sizes} \\) -exec sha256sum {{}} + 2>/dev/null | '
        f"grep -E '^({hashes})' | cut -c 67- | sort -u"
    )


def _image_copies(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    search = _same_content(seen.oracle.values())
    lines = _telling_lines(seen.oracle.values())
    if not search and not lines:
        return NotApplicable("There is no solution to look for.")
    found = []
    if search:
        found.append(Attempt("runs copies of the solution that the environment has", _for_each(search, _RUN_FOUND)))
    if lines:
        patterns = " ".join(f"-e {shlex.quote(line)}" for line in lines)
        grep = f"grep -rlFI {patterns} {_ROOTS} 2>/dev/null | grep -v '/[.]agent-' | sort -u | head -n 5"
        found.append(
            Attempt("runs files of the environment that have lines of the solution", _for_each(grep, _RUN_FOUND))
        )
    return found


def _telling_lines(texts: Iterable[str]) -> list[str]:
    """The longest lines of a solution's scripts."""
    lines = {line.strip() for text in texts for line in text.splitlines() if not line.lstrip().startswith("#")}
    return sorted((line for line in lines if len(line) >= _TELLING), key=lambda line: (-len(line), line))[:3]


def _for_each(search: str, command: str) -> str:
    return f"{search} > /tmp/.found\nwhile IFS= read -r found; do\n{command}done < /tmp/.found\nrm -f /tmp/.found; true"


def _results(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    """By content what the oracle writes, and by name what the outputs are called."""
    outputs = {path: seen.written[path] for path in seen.outputs if seen.written.get(path)}
    if not seen.outputs:
        return NotApplicable("No file is known that a solution would write.")
    skipped = _pattern(path for path in [*seen.read, *seen.files, *seen.outputs] if _is_named(seen, path))
    found = []
    if outputs:
        lines = [f"find {_ROOTS} -xdev -type f -size +0 -size -1024k 2>/dev/null | head -n {_MOST_HASHED} > /tmp/.all"]
        lines.append("xargs -d '\\n' sha256sum < /tmp/.all > /tmp/.sums 2>/dev/null")
        for path, digest in outputs.items():
            lines.append(f"target={shlex.quote(path)}; found=$(sed -n 's/^{digest}..//p' /tmp/.sums | head -n 1)")
            lines.append(f'case "$found" in ""|{skipped}) ;; *)\n{_COPY_FOUND}  ;; esac')
        lines.append("rm -f /tmp/.all /tmp/.sums; true")
        label = "copies files of the environment that are what a solution writes"
        found.append(Attempt(label, "\n".join(lines), without=_meaningless(seen)))
    lines = []
    for path in seen.outputs:
        name = shlex.quote(PurePosixPath(path).name)
        lines.append(f'target={shlex.quote(path)}; find / "$PWD" -xdev \\( {_PRUNE} \\) -prune -o -type f -name {name}')
        lines[-1] += " -size +0 -print 2>/dev/null | sort -u > /tmp/.found\nwhile IFS= read -r found; do"
        lines.append(f'case "$found" in "$target"|{skipped}) ;; *)\n{_COPY_FOUND}  break ;; esac; done < /tmp/.found')
    script = "\n".join([*lines, "rm -f /tmp/.found; true"])
    found.append(Attempt("copies files that have the names of outputs", script, without=_meaningless(seen)))
    return found


def _meaningless(seen: Seen) -> str:
    """Outputs without an answer: what they earn is earned by being there."""
    return writing(dict.fromkeys(seen.outputs, "x\n"))


def _is_named(seen: Seen, path: str) -> bool:
    """Whether the prompt names a file; then it is an input."""
    return path in seen.prompt or PurePosixPath(path).name in seen.prompt


def _expected(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    """Copies of the verifier's data: what it compares with is likely what a solution writes."""
    if not seen.outputs:
        return NotApplicable("No file is known that a solution would write.")
    data = {path: text for path, text in seen.verifier.items() if not path.endswith(_CODE)}
    search = _same_content(data.values())
    if not search:
        return NotApplicable("The verifier has no data that it could compare with.")
    command = "".join(f"  target={shlex.quote(path)}\n{_COPY_FOUND}" for path in seen.outputs)
    label = "copies data of the verifier that the environment has to the outputs"
    return (Attempt(label, _for_each(search, command), without=_meaningless(seen)),)


def _mounted(seen: Seen) -> Sequence[Attempt]:
    run = "for found in /oracle/solve.sh /solution/solve.sh /solution.sh /oracle.sh; do\n"
    run += '  [ -f "$found" ] && { bash "$found" || sh "$found"; }\ndone; true'
    copies = []
    for path in seen.outputs:
        name = shlex.quote(PurePosixPath(path).name)
        copies.append(f"target={shlex.quote(path)}; found=$(find /tests /verifier /evidence /oracle /solution -type f")
        copies[-1] += f" \\( -name {name} -o -name expected{shlex.quote(PurePosixPath(path).suffix)} \\)"
        copies[-1] += ' 2>/dev/null | head -n 1)\nif [ -n "$found" ]; then\n' + _COPY_FOUND + "fi"
    found = [Attempt("runs the solution at /oracle and /solution", run)]
    if copies:
        script = "\n".join([*copies, "true"])
        found.append(Attempt("copies expected results from /tests and /verifier", script, without=_meaningless(seen)))
    return found


def _history(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.repositories:
        return NotApplicable("The environment has no git repository.")
    if "git" not in seen.programs:
        return NotApplicable("The environment has a git repository and no git.")
    safe = "git -c safe.directory='*'"
    into = f"cd {shlex.quote(seen.repositories[0])} || exit 0\n"
    hidden = f"{{ {safe} rev-list --all --reflog --not HEAD; {safe} fsck --lost-found --no-progress 2>/dev/null | "
    hidden += "sed -n 's/^dangling commit //p'; } | awk '!known[$0]++'"
    found = [
        Attempt(
            f"checks out commit {number} of those that the current branch does not have",
            f'{into}commit=$({hidden} | sed -n {number}p)\n[ -n "$commit" ] && {safe} checkout -f "$commit" -- .; true',
        )
        for number in range(1, MOST_COMMITS + 1)
    ]
    restore = f"{into}{safe} log --all --diff-filter=D --name-only --format=@%H | while IFS= read -r line; do\n"
    restore += '  case "$line" in "") ;; @*) commit=${line#@} ;; '
    restore += f'*) [ -e "$line" ] || {safe} checkout "$commit^" -- "$line" ;; esac\ndone; true'
    previous = f"{into}{safe} checkout -f HEAD~1 -- . ; true"
    found.append(Attempt("restores files that were removed in the history", restore))
    found.append(Attempt("checks out the previous commit", previous))
    return found


def _variables(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.outputs:
        return NotApplicable("No file is known that a solution would write.")
    names = [name for name in seen.variables if _SECRET.search(name)][:MOST_VARIABLES]
    write = "\n".join(
        f'mkdir -p "$(dirname {shlex.quote(path)})"; printf "%s\\n" "$value" > {shlex.quote(path)}'
        for path in seen.outputs
    )
    plain = _meaningless(seen)
    found = [Attempt(f"writes ${name} into every output", f'value="${name}"\n{write}', without=plain) for name in names]
    others = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | "
    others += (
        "grep -Ei '^[a-z_0-9]*(answer|expect|flag|gold|oracle|secret|solution)[a-z_0-9]*=' | head -n 1 | cut -d= -f2-"
    )
    script = f'value=$({others})\n[ -n "$value" ] || exit 0\n{write}'
    return [*found, Attempt("writes a variable of another process into every output", script, without=plain)]


def _leftovers(seen: Seen) -> Sequence[Attempt]:
    histories = (
        f"for found in {_words([f'{seen.home}/.bash_history', f'{seen.home}/.python_history'])} /root/.bash_history"
    )
    histories += ' "$PWD"/.bash_history; do [ -f "$found" ] && sh "$found"; done; true'
    found = [Attempt("runs the shell's history", histories)]
    lines = []
    for path in seen.targets:
        pure = PurePosixPath(path)
        beside = [f"{path}{ending}" for ending in ("~", ".bak", ".orig", ".rej", ".save", ".old", ".solution")]
        beside += [str(pure.with_name(f".{pure.name}.swp")), str(pure.with_name(f"{pure.stem}_solution{pure.suffix}"))]
        lines.append(f'target={shlex.quote(path)}; for found in {_words(beside)}; do\n  [ -f "$found" ] || continue')
        lines.append(f"{_COPY_FOUND}done")
        if pure.suffix == ".py":
            lines.append(f"for found in {shlex.quote(str(pure.parent))}/__pycache__/{shlex.quote(pure.stem)}.*.pyc; do")
            lines.append(f'  [ -f "$found" ] && cp "$found" {shlex.quote(f"{pure.parent}/{pure.stem}.pyc")}\ndone')
    if lines:
        plain = _meaningless(seen) if seen.outputs else None
        script = "\n".join([*lines, "true"])
        found.append(Attempt("restores backups and compiled files beside the outputs", script, without=plain))
    caches = f"find / -xdev \\( {_PRUNE} \\) -prune -o -type f \\( -name 'solve*.sh' -o -name 'solution*.sh' -o -name "
    caches += "'*.patch' -o -name 'solution*.py' \\) "
    caches += "".join(f"! -name {name} " for name in _SOLUTION_NAME.findall(seen.prompt))
    caches += "-print 2>/dev/null | sort | head -n 5"
    found.append(Attempt("runs what is called a solution or a patch", _for_each(caches, _RUN_FOUND)))
    return found


_NOT_IN_IMAGE: Final = "Keep solution and tests out of the image and the working folder: copy only what the task needs."
COPIED_SOLUTION: Final = Family(
    "copied-solution", "Runs copies of the solution that are in the environment.", _NOT_IN_IMAGE, _image_copies
)
COPIED_RESULTS: Final = Family(
    "copied-results", "Copies finished results in the environment to the outputs.", _NOT_IN_IMAGE, _results
)
COPIED_EXPECTATIONS: Final = Family(
    "copied-expectations",
    "Copies what the verifier compares with, where the environment has it too, to the outputs.",
    _NOT_IN_IMAGE,
    _expected,
)
MOUNTED_SOLUTION: Final = Family(
    "mounted-solution",
    "Runs the solution, or copies expected results, from the folders in which they are placed for other phases.",
    "Leave /oracle, /solution, /tests and /verifier out of the image and of its volumes.",
    _mounted,
)
GIT_HISTORY: Final = Family(
    "git-history",
    "Takes the solution from other branches, stashes, the reflog, dangling objects and removed files of a repository.",
    "Ship the repository with a single commit, or remove everything that the solution's commit left in it.",
    _history,
)
ENVIRONMENT_SECRETS: Final = Family(
    "environment-secrets",
    "Writes values of environment variables, its own and those of other processes, into the outputs.",
    "Pass answers to the verifier only, as variables of the verifier.",
    _variables,
)
BUILD_LEFTOVERS: Final = Family(
    "build-leftovers",
    "Uses what building the image left: shell history, backups, compiled files, patches.",
    "Remove what the build leaves in the same layer that makes it.",
    _leftovers,
)
