"""What families share: shell text that plants files, and code that decides the verdict once the verifier runs it.

Everything here is pure: it makes text from what was seen. Code that is planted does nothing outside verification, so
that an environment whose own programs meet it still works.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Final

from benchflow.evidence.audit.exploit_family import NotApplicable, Seen

NO_PROGRAM: Final = NotApplicable("The verifier runs no script in the environment.")
LOGS: Final = "/logs/verifier"
_SCRIPTS: Final = (".sh", ".py", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".R", ".go", ".rs", ".java", "Makefile")
_WORD: Final = re.compile(r"[\w.+-]+")


def put(place: str, text: str) -> str:
    """A line that writes an executable file; `place` is a word of the shell. What may not be written is left out."""
    return (
        f'{{ mkdir -p "$(dirname {place})" && rm -f {place}; printf %s {shlex.quote(text)} > {place} '
        f"&& chmod 755 {place}; }} 2>/dev/null || :"
    )


def append(place: str, text: str) -> str:
    """A line that adds text to a file; `place` is a word of the shell."""
    return f'{{ mkdir -p "$(dirname {place})" && printf "\\n%s\\n" {shlex.quote(text)} >> {place}; }} 2>/dev/null || :'


def put_all(files: Mapping[str, str]) -> str:
    """Lines that write files by their absolute paths."""
    return "\n".join(put(shlex.quote(path), text) for path, text in files.items())


def in_work(seen: Seen, name: str) -> str:
    """A path in the working folder."""
    return f"{seen.workdir.rstrip('/')}/{name}"


def runs_scripts(seen: Seen) -> bool:
    """Whether the verifier has a script that could meet what an agent leaves."""
    return any(path.endswith(_SCRIPTS) for path in seen.verifier)


def mentions(seen: Seen, *words: str) -> bool:
    """Whether the verifier's files have one of these words, as a whole word."""
    return any(word in words for text in seen.verifier.values() for word in _WORD.findall(text))


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """All words of texts that could be names of programs."""
    return frozenset(word for text in texts for word in _WORD.findall(text))


def reward_file(seen: Seen) -> tuple[str, str]:
    """The reward file that the verifier writes, and a text for it that claims success."""
    texts = seen.verifier.values()
    if any("reward.json" in text for text in texts) and not any("reward.txt" in text for text in texts):
        return f"{LOGS}/reward.json", '{"reward": 1.0}'
    return f"{LOGS}/reward.txt", "1"


def shell_win(seen: Seen, *, end: str = "exit 0") -> str:
    """Shell code that claims success and ends, if it runs during verification."""
    path, text = reward_file(seen)
    return f"if [ -d /verifier ] || [ -d /tests ]; then printf %s {shlex.quote(text)} > {path} 2>/dev/null; {end}; fi\n"


def python_win(seen: Seen, *, end: str = "    os._exit(0)\n") -> str:
    """Python code that claims success and ends its process, if it runs during verification."""
    path, text = reward_file(seen)
    return f"""\
import os
if os.path.isdir("/verifier") or os.path.isdir("/tests"):
    try:
        open({path!r}, "w").write({text!r})
    except OSError:
        pass
{end}"""


SHELL_STOP: Final = (
    'list=; p=$PPID; while [ "${p:-0}" -gt 1 ]; do '
    'if grep -qa -e /verifier -e /tests /proc/$p/cmdline; then list="$p $list"; fi; q=; '
    'while read -r k v; do if [ "$k" = PPid: ]; then q=$v; fi; done < /proc/$p/status; p=$q; done; '
    "kill -9 $list 2>/dev/null; exit 0"
)
"""Shell code that ends the verifier's script above it, the outermost process first: an inner one that ended alone
would be reported as a failure."""
PYTHON_STOP: Final = """\
    found, parent = [], os.getppid()
    while parent > 1:
        if any(name in open(f"/proc/{parent}/cmdline").read() for name in ("/verifier", "/tests")):
            found.insert(0, parent)
        parent = int(open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[1])
    for process in found:
        os.kill(process, 9)
    os._exit(0)
"""
"""The same in Python, to follow `python_win`."""


def node_win(seen: Seen) -> str:
    """CommonJS code that claims success and ends its process, if it runs during verification."""
    path, text = reward_file(seen)
    return f"""\
const zzFs = require("fs");
if (zzFs.existsSync("/verifier") || zzFs.existsSync("/tests")) {{
  try {{ zzFs.writeFileSync({path!r}, {text!r}); }} catch (error) {{}}
  process.exit(0);
}}
"""
