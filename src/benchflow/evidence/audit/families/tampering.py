"""Tampering with what the verifier trusts and the agent can write: references, checksums, programs, databases."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.forging import MOST, is_code, mentions, overwriting, quoted, references
from benchflow.evidence.audit.families.outputs import writing

_EMPTY: Final[Mapping[str, str]] = {".json": "{}\n", ".yaml": "{}\n", ".yml": "{}\n"}
_SUMS: Final = re.compile(r"(?i)(^|[._-])(sha\d*|md5|checksums?|digests?)(sums?)?(\.txt)?$")
_DATABASES: Final = (".db", ".db3", ".sqlite", ".sqlite3")
_PYTHON_STUB: Final = """\
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *given, **named: 1


if __name__ == "__main__":
    print(1)
"""
_NODE_STUB: Final = """\
module.exports = new Proxy(() => 1, {get: () => () => 1});
if (require.main === module) console.log(1);
"""
_STUBS: Final[Mapping[str, str]] = {
    ".py": _PYTHON_STUB,
    ".js": _NODE_STUB,
    ".cjs": _NODE_STUB,
    ".sh": "#!/bin/sh\necho 1\n",
    ".bash": "#!/bin/sh\necho 1\n",
    ".rb": "puts 1\n",
    ".pl": 'print "1\\n";\n',
    ".c": '#include <stdio.h>\nint main(void) { puts("1"); return 0; }\n',
    ".go": 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println(1) }\n',
    ".rs": 'fn main() { println!("1"); }\n',
    "": "#!/bin/sh\necho 1\n",
}
_DELAYS: Final[Mapping[str, str]] = {
    ".py": "import time; time.sleep(1)",
    ".js": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1000);",
    ".sh": "sleep 1",
    ".bash": "sleep 1",
}
_TIMED: Final = r"perf_counter|time\.time\(|monotonic|hyperfine|date \+%s|\btime -|process\.hrtime|SECONDS|speedup"


def _references(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    data = [path for path in references(seen) if not is_code(path)]
    if not data:
        return NotApplicable("The verifier names no data in the environment.")
    ones = writing({path: "1\n" for path in seen.targets if not is_code(path)})
    empty = writing({path: _nothing(path) for path in seen.targets if not is_code(path)})
    return (
        Attempt(
            f"writes 1 into the outputs and into what they are compared with ({_names(data)})",
            f"{ones}\n{overwriting(dict.fromkeys(data, '1' + chr(10)))}",
            without=ones,
        ),
        Attempt(
            f"empties the outputs and what they are compared with ({_names(data)})",
            f"{empty}\n{overwriting({path: _nothing(path) for path in data})}",
            without=empty,
        ),
    )


def _nothing(path: str) -> str:
    return _EMPTY.get(PurePosixPath(path).suffix, "")


def _names(paths: Sequence[str]) -> str:
    more = ", …" if len(paths) > 3 else ""
    return ", ".join(PurePosixPath(path).name for path in paths[:3]) + more


_RECOMPUTE: Final = """\
for sums in {sums}; do
  [ -f "$sums" ] || continue
  cd "$(dirname "$sums")" || continue
  while read -r digest name; do
    case ${{#digest}} in 32) tool=md5sum;; 40) tool=sha1sum;; 64) tool=sha256sum;; 128) tool=sha512sum;; *) tool=;; esac
    file=${{name#\\*}}; [ -n "$file" ] || file=${{sums%.*}}; [ -f "$file" ] || file={workdir}/$file
    if [ -n "$tool" ] && [ -f "$file" ]; then digest=$($tool < "$file" | cut -d' ' -f1); fi
    printf '%s%s\\n' "$digest" "${{name:+  $name}}"
  done < "$sums" > /tmp/.sums
  cat /tmp/.sums > "$sums"
done
rm -f /tmp/.sums
"""


def _checksums(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    everything = dict.fromkeys([*seen.read, *seen.files])
    sums = [path for path in everything if _SUMS.search(PurePosixPath(path).name) and path not in seen.outputs]
    if not sums:
        return NotApplicable("The environment has no file of checksums.")
    ones = writing(dict.fromkeys(seen.targets, "1\n"))
    again = _RECOMPUTE.format(sums=quoted(sums[:MOST]), workdir=shlex.quote(seen.workdir.rstrip("/")))
    label = f"writes 1 into the outputs and computes {_names(sums)} again"
    return (Attempt(label, f"{ones}\n{again}", without=ones),)


def _programs(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    programs = [path for path in references(seen) if PurePosixPath(path).suffix in _STUBS]
    if not programs:
        return NotApplicable("The verifier names no program in the environment.")
    stubs = writing(
        {path: _STUBS.get(PurePosixPath(path).suffix, "1\n") if is_code(path) else "1\n" for path in seen.targets}
    )
    found = [
        Attempt(
            f"replaces the programs that the verifier runs by ones that print 1 ({_names(programs)})",
            f"{stubs}\n{overwriting({path: _STUBS[PurePosixPath(path).suffix] for path in programs})}",
            without=stubs,
        )
    ]
    slowed = [path for path in programs if PurePosixPath(path).suffix in _DELAYS]
    if slowed and mentions(seen, _TIMED):
        lines = [
            f"[ -f {shlex.quote(path)} ] && sed -i '1{{/^#!/!s/^/{_DELAYS[PurePosixPath(path).suffix]}\\n/;"
            f"/^#!/s/$/\\n{_DELAYS[PurePosixPath(path).suffix]}/}}' {shlex.quote(path)}"
            for path in slowed
        ]
        label = f"makes the programs slower that a solution is timed against ({_names(slowed)})"
        found.append(Attempt(label, "\n".join([*lines, "true"])))
    return found


_EMPTY_TABLES: Final = """\
import sqlite3, sys
for path in sys.argv[1:]:
    try:
        with sqlite3.connect(path) as database:
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                if not name.startswith("sqlite_"):
                    database.execute(f'DELETE FROM "{name}"')
    except sqlite3.Error:
        pass
"""


def _databases(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    everything = dict.fromkeys([*seen.read, *seen.files])
    databases = [path for path in everything if path.endswith(_DATABASES) and path not in seen.targets][:MOST]
    if not databases:
        return NotApplicable("The environment has no database file.")
    if "python3" not in seen.programs:
        return NotApplicable("The environment has no python3 to change its database with.")
    zeros = writing(dict.fromkeys(seen.targets, "0\n"))
    change = f"python3 -c {shlex.quote(_EMPTY_TABLES)} {quoted(databases)}"
    label = f"writes 0 into the outputs and removes all rows of {_names(databases)}"
    return (Attempt(label, f"{zeros}\n{change}\ntrue", without=zeros),)


_BESIDE: Final = "beside the verifier, and never read from the environment what the agent can write"
TAMPERED_REFERENCE: Final = Family(
    "tampered-reference",
    "Rewrites references, fixtures and inputs that the verifier reads, so that a wrong output matches them.",
    f"Keep references and a copy of the inputs {_BESIDE}.",
    _references,
)
TAMPERED_CHECKSUMS: Final = Family(
    "tampered-checksums",
    "Recomputes checksums that are stored beside the data they protect.",
    f"Keep checksums {_BESIDE}.",
    _checksums,
)
TAMPERED_PROGRAMS: Final = Family(
    "tampered-programs",
    "Replaces or slows the reference programs that the verifier compares a solution with.",
    f"Keep reference programs {_BESIDE}.",
    _programs,
)
TAMPERED_DATABASE: Final = Family(
    "tampered-database",
    "Empties the databases that the verifier takes the expected result from.",
    f"Keep a copy of the database {_BESIDE}.",
    _databases,
)
