"""Every page of the documentation runs from top to bottom, and prints what it shows.

`UPDATE_PAGES=1 pytest tests/docs` writes what was printed into the pages; read the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from benchflow.cli import bench
from cube.cli import commands as cube
from page_runner import BEFORE, DATA, ROOT, RUN, Block, PageRun, blocks

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
TEXTS = {page: (DOCS / page).read_text() for page in PAGES} | {"../README.md": (ROOT / "README.md").read_text()}
BLOCKS = {page: list(blocks(text)) for page, text in TEXTS.items()}
WIDEST = 105
"""Characters of a line of code that fit beside the navigation of the site; drawings have no such limit."""
RUNNING = [page for page, found in BLOCKS.items() if any(b.language in RUN and not b.not_run for b in found)]


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize("page", RUNNING)
def test_a_page_runs_and_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    with PageRun(DOCS / page, tmp_path) as run:
        text = run.run()
    if os.environ.get("UPDATE_PAGES") and (DOCS / page).read_text() == run.text:
        (DOCS / page).write_text(text)
    assert not run.problems, "\n".join(run.problems)


def every(*languages: str) -> list[object]:
    return [
        pytest.param(block, id=f"{page}:{block.line}")
        for page, found in BLOCKS.items()
        for block in found
        if block.language in languages and block.not_run is None
    ]


@pytest.mark.parametrize("block", every("yaml", "json", "toml"))
def test_data_on_a_page_parses(block: Block) -> None:
    read = {"yaml": yaml.safe_load, "json": json.loads, "toml": tomllib.loads}[block.language]
    assert read(block.text)


@pytest.mark.parametrize("page", TEXTS)
def test_every_block_of_a_page_has_a_language_that_says_what_is_done_with_it(page: str) -> None:
    assert {block.language for block in BLOCKS[page]} <= RUN | DATA | {"text"}
    text = re.sub(r"^```.*?^```$", "", TEXTS[page], flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"(?:\A|\n)\n {4}(?! *[-*\d])\S.*", text), "fence this block, so that its language is known"


@pytest.mark.parametrize("page", TEXTS)
def test_code_on_a_page_fits_its_column(page: str) -> None:
    code = [block for block in BLOCKS[page] if block.language != "text" or block.output_of]
    assert [line for block in code for line in block.text.splitlines() if len(line) > WIDEST] == []


def test_a_script_that_prepares_a_page_belongs_to_a_page_that_runs() -> None:
    assert {path.stem for path in BEFORE.iterdir()} <= {Path(page).stem for page in RUNNING}


def calls() -> list[str]:
    """The calls of `bench` and `cube` that are not run: in blocks that are left out, and in sentences and tables."""
    found: set[str] = set()
    for page, text in TEXTS.items():
        for block in BLOCKS[page]:
            if block.not_run is not None and block.language in ("sh", "console"):
                lines = block.text.replace("\\\n", " ").splitlines()
                found |= {line.removeprefix("$ ").partition(" #")[0] for line in lines}
        found |= {" ".join(call.split()) for call in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)}
    return sorted(call for call in found if re.match(r"(bench|cube) [a-z]", call))


@pytest.mark.parametrize("call", calls())
def test_a_call_on_a_page_names_a_command_and_its_options(call: str) -> None:
    name, *words = call.split()
    command: click.Command = {"bench": bench, "cube": cube}[name]
    context = click.Context(command, info_name=name)
    while isinstance(command, click.Group) and words and words[0].isalpha():
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    named = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(words))
    assert set(named) <= known | {"-h", "--help"}
