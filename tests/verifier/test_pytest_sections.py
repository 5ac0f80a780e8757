"""The pytest section of shared settings files is the environment's; the rest stays the agent's."""

from __future__ import annotations

import tomllib

import pytest

from benchflow.verifier.shared_box import settle_section

PLUGIN = '[tool.pytest.ini_options]\naddopts = "-p evil"\n'


def test_an_added_section_is_removed_and_the_rest_stays():
    settled = settle_section("pyproject.toml", f'[project]\nname = "x"\n{PLUGIN}', None)
    assert tomllib.loads(settled) == {"project": {"name": "x"}, "tool": {}}


@pytest.mark.parametrize(
    "text",
    [
        'tool.pytest.ini_options.addopts = "-p evil"\n',
        'tool = {pytest = {ini_options = {addopts = "-p evil"}}}\n',
        '[tool]\npytest = {ini_options = {addopts = "-p evil"}}\n',
        '["tool"."pytest"."ini_options"]\naddopts = "-p evil"\n',
    ],
)
def test_no_spelling_escapes(text):
    assert "evil" not in settle_section("pyproject.toml", text, None)


def test_the_former_section_comes_back():
    former = '[tool.pytest.ini_options]\npythonpath = ["src"]\n'
    settled = settle_section("pyproject.toml", PLUGIN + '[project]\nname = "y"\n', former)
    assert tomllib.loads(settled) == {
        "project": {"name": "y"},
        "tool": {"pytest": {"ini_options": {"pythonpath": ["src"]}}},
    }


@pytest.mark.parametrize(
    ("name", "text", "former"),
    [
        ("pyproject.toml", '[project]\nname = "x"\n', None),
        ("pyproject.toml", PLUGIN + "[project]\n", PLUGIN),
        ("pyproject.toml", "not toml [", None),
        ("tox.ini", "[tox]\nenvlist = a\n", "[tox]\n"),
        ("setup.cfg", "[tool:pytest]\na = 1\n[x]\n", "[tool:pytest]\na = 1\n"),
    ],
)
def test_settings_that_are_good_stay_as_they_are(name, text, former):
    assert settle_section(name, text, former) is None


@pytest.mark.parametrize(("name", "header"), [("tox.ini", "[pytest]"), ("setup.cfg", "[tool:pytest]")])
def test_sections_of_ini_files(name, header):
    text = f"[metadata]\nname = x\n{header}\naddopts = -p evil\n[other]\ny = 1\n"
    assert settle_section(name, text, None) == "[metadata]\nname = x\n[other]\ny = 1\n"
    assert settle_section(name, text, f"{header}\nminversion = 7\n").endswith(f"{header}\nminversion = 7\n")
