"""Shells complete commands, options, choices and paths, with what click prints for them."""

import os

import pytest

import loaded_commands


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("bench ta", ["plain,tasks"]),
        ("bench tasks chec", ["plain,check"]),
        ("bench run --base", ["plain,--base-image"]),
        ("bench run --pull m", ["plain,missing"]),
        ("bench tasks check exam", ["file,exam"]),
        ("bench eval run exam", ["file,exam"]),
    ],
)
def test_a_shell_completes(line, wanted, tmp_path):
    words = line.split(" ")
    asked = {"_BENCH_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = loaded_commands.bench(cwd=tmp_path, env={**os.environ, **asked})
    assert done.stdout.splitlines() == wanted, done.stderr
