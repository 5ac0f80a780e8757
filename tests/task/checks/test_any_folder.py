"""Whatever a folder holds, every level gives a report that can be printed."""

import json
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchflow.task.checks import LEVELS, check_folder
from benchflow.task.checks.codes import CODES

NAMES = (
    "task.md",
    "task.toml",
    "instruction.md",
    "verifier/verifier.md",
    "verifier/task.toml",
    "verifier/test.sh",
    "tests/test.sh",
    "oracle/solve.sh",
    "solution/solve.sh",
    "prompts/role.a.md",
    "evidence/pins.json",
    "environment",
    "verifier",
    "steps/one/instruction.md",
)
TEXTS = (
    "",
    "---\n---\nDo it.\n",
    "---\ntask: {name: acme/a}\nbenchflow: {evidence: {pins: evidence/pins.json}}\n---\nDo it.\n",
    "---\nsteps: [{name: one}]\nverifier: {type: llm-judge}\n---\n",
    "---\nverifier: {strategies: {a: {type: script, command: './x.sh \"'}}}\n---\n## role:a\nx\n",
    "---\nverifier: {strategies: {a: {type: hybrid, factors: {b: c}}}}\n---\n",
    'version = "1.0"\n[task]\nname = "acme/a"\n',
    '[[steps]]\nname = "one"\n[verifier]\nenvironment_mode = "separate"\n',
    '{"kind": "evidence-pins", "files": {"task.md": 1, "x": null}}',
    "[REPLACE: a]\n\r\x00[REPLACE:",
)
contents = st.sampled_from([text.encode() for text in TEXTS]) | st.binary(max_size=40)
kinds = st.sampled_from(["file", "folder", "link", "pipe"])


@given(
    entries=st.dictionaries(st.sampled_from(NAMES), st.tuples(kinds, contents), max_size=8),
    level=st.sampled_from(sorted(LEVELS)),
)
def test_there_is_always_a_report(entries, level):
    root = Path(tempfile.mkdtemp(prefix="any-folder-"))
    try:
        for name, (kind, content) in entries.items():
            write(root / name, kind, content)
        report = check_folder(root, level=level, sandbox="local" if level == "runtime-capability" else None)
    finally:
        shutil.rmtree(root)
    assert report.digest is not None
    assert report.digest.startswith("sha256:")
    assert json.loads(json.dumps(report.to_dict()))["valid"] is report.valid
    for issue in report.issues:
        assert issue.code in CODES
        assert issue.code != "check-failed", issue.message
        assert issue.message.strip()
        assert issue.line is None or issue.line >= 1


def write(path: Path, kind: str, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_bytes(content)
        elif kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(content.decode("utf-8", "replace").replace("\0", "").strip() or "nowhere")
        else:
            os.mkfifo(path)
    except OSError:
        return  # two entries that exclude each other
