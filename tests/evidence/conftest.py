"""Packages to prove and to audit, and sandboxes in memory (real ones for tests marked `sandbox`)."""

import pytest

VERIFIER = "if grep -q done /app/answer.txt 2>/dev/null; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


@pytest.fixture
def backend(memory_or_local):
    return memory_or_local


@pytest.fixture
def make_package(tmp_path):
    """A package with the given frontmatter and files; gives its folder."""

    def make(frontmatter="", files=None, *, prompt="Write done into answer.txt.", name="task", verifier=VERIFIER):
        folder = tmp_path / name
        everything = {"verifier/test.sh": verifier, "oracle/solve.sh": "echo done > answer.txt\n", **(files or {})}
        text = f"---\ntask:\n  name: acme/{name}\n{frontmatter}---\n\n{prompt}\n"
        for path, content in {"task.md": text, **everything}.items():
            if content is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(content)
        return folder

    return make
