"""Proves the example packages and writes their evidence: `python scripts/prove_examples.py [--fresh] [NAME...]`.

What the evidence of a package still shows is not run again, so that a second call changes nothing; `--fresh` runs
everything. At the end every package must pass the level `acceptance`. Judges are answered by the local model server of
`benchflow.testing`, by rules that read the work as the rubric asks, so that the evidence is the same everywhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from benchflow.testing import ModelRequest, ModelServer

PACKAGES = Path(__file__).parents[1] / "examples" / "packages"


def judge(request: ModelRequest) -> dict[str, object]:
    """The verdict of a careful reader on the file that the request quotes."""
    text = "\n".join(str(message["content"]) for message in request.messages)
    if "explanation.md" in text:
        work = _quoted(text, "explanation.md")
        cause, _, proof = work.strip().partition("\n")
        named = "certificate" in cause and not re.match(r"[0-9:]+ ", cause)  # a line of the log explains nothing
        shown = named and "10:02 error handshake failed" in proof
        return {"score": 1.0 if shown else 0.5 if named else 0.0, "reason": "cause and proof"}
    lines = [line for line in _quoted(text, "decisions.md").splitlines() if line.startswith("- ")]
    if "only discussed is listed" in text:
        good = bool(lines) and not any(word in " ".join(lines) for word in ("office", "rename"))
    else:
        good = any(re.search(r"importer.*chi.*1 march", line) for line in lines)
        good = good and any(re.search(r"customers.*ben.*15 february", line) for line in lines)
    return {"score": int(good), "reason": "as the rubric asks"}


def _quoted(text: str, name: str) -> str:
    """The content of a file that the request marks as work, in small letters."""
    found = re.search(rf"^=+\w+ beginning of \S*{re.escape(name)}\n(.*?)^=+\w+ end of ", text, re.DOTALL | re.MULTILINE)
    return found[1].lower() if found else ""


def main() -> int:
    options = [word for word in sys.argv[1:] if word == "--fresh"]
    named = [word for word in sys.argv[1:] if word != "--fresh"]
    names = named or sorted(path.parent.name for path in PACKAGES.glob("*/task.md"))
    folders = [str(PACKAGES / name) for name in names]
    bench = str(Path(sys.executable).with_name("bench"))
    with ModelServer(judge) as server:
        proven = subprocess.run(
            [bench, "tasks", "prove", "--declare", *options, "--sandbox", "local", "--base-image", "host", *folders],
            env={**os.environ, **server.environment},
            check=False,
        )
    accepted = subprocess.run([bench, "tasks", "check", "--level", "acceptance", *folders], check=False)
    return proven.returncode or accepted.returncode


if __name__ == "__main__":
    sys.exit(main())
