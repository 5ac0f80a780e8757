"""Extras name what is used and nothing else, and each of them installs at its lowest versions and imports."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
TOOLS = {"dev", "docs", "mutate"}
"""Extras for working on this project; programs of theirs are run and not imported."""
USED_BY_OTHERS = {"models": {"mcp"}, "serve": {"websockets"}}
"""What is imported by another requirement of the same extra and not declared by it."""
PART_OF = {"httpcore": {"httpx"}, "markupsafe": {"jinja2"}, "mcp_types": {"mcp"}, "pydantic_core": {"pydantic"}}
"""Modules that are distributed apart and come with a requirement."""
MODULES = {
    "arena": ["benchflow.arena.a2a_client", "benchflow.arena.a2a_serving", "benchflow.rollout.drivers.arena"],
    "browser": ["playwright.sync_api", "cube.tools.web_page"],
    "images": ["PIL.Image", "cube.core"],
    "gymnasium": ["benchflow.trainers.package_env"],
    "ray": ["ray", "benchflow.cluster.ray_cluster", "benchflow.cluster.ray_connection"],
    "serve": [
        "cube.server",
        "cube.serving",
        "cube.client",
        "cube.mcp_tools",
        "cube.access",
        "cube.integrations.nemogym",
        "benchflow.serve.openenv.openenv_app",
        "benchflow.serve.mcp.agent_server",
        "websockets.server",
    ],
    "acp": ["benchflow.agents.acp.acp_session", "benchflow.agents.acp.acp_client"],
    "models": ["litellm", "benchflow.models.chat"],
    "plots": ["matplotlib.figure", "benchflow.cli.eval.plots"],
    "sign": ["cryptography.hazmat.primitives.asymmetric.ed25519", "benchflow.evidence.leaderboard.board_signing"],
    "view": ["benchflow.view.view_app", "benchflow.view.view_server", "benchflow.view.html_export"],
    "zstd": ["zstandard", "benchflow.sandbox.images.unpack"],
}
"""What must be importable with an extra."""


def names(requirements: list[str]) -> set[str]:
    """The distributions of requirements, as the index spells them."""
    return {re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def imported() -> Iterator[str]:
    """The top-level names that the source imports, apart from hooks for the interpreters of verifiers."""
    hooks = ROOT / "src/benchflow/verifier/kit/ground"
    for file in (ROOT / "src").rglob("*.py"):
        if file.is_relative_to(hooks):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


@pytest.fixture(scope="module")
def distributions() -> dict[str, set[str]]:
    """The distributions that provide what the source imports and is not of Python or this project, by module."""
    known = packages_distributions()
    outside = set(imported()) - sys.stdlib_module_names - {"cube", "benchflow"}
    return {module: {name.lower().replace("_", "-") for name in known.get(module, [])} for module in outside}


@pytest.mark.slow
@pytest.mark.xdist_group("imports")
def test_what_the_source_imports_is_a_dependency_or_in_an_extra(distributions):
    declared = names(PROJECT["dependencies"]).union(*(names(EXTRAS[extra]) for extra in EXTRAS.keys() - TOOLS))
    assert {
        module: of for module, of in distributions.items() if not (of | PART_OF.get(module, set())) & declared
    } == {}


@pytest.mark.slow
@pytest.mark.xdist_group("imports")
@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - TOOLS))
def test_an_extra_names_only_what_the_source_imports(extra, distributions):
    used = set().union(*distributions.values())
    assert names(EXTRAS[extra]) - used - USED_BY_OTHERS.get(extra, set()) == set()
    assert extra in MODULES, "say what must be importable with it"


def test_the_page_on_installation_lists_every_extra_and_no_other():
    table = (ROOT / "docs/install.md").read_text().partition("## Extras")[2].partition("\n## ")[0]
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", table)) == EXTRAS.keys() - TOOLS


@pytest.fixture(scope="module")
def uv() -> str:
    found = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    assert found is not None, "uv makes the environments of these tests: pip install uv"
    return found


@pytest.fixture(scope="module")
def wheel(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This project, built once for all extras."""
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [uv, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    [made] = folder.glob("*.whl")
    return made


@pytest.mark.slow
@pytest.mark.xdist_group("extras")
@pytest.mark.parametrize("extra", sorted(MODULES))
def test_an_extra_installs_at_its_lowest_versions_and_imports(extra, uv, wheel, tmp_path):
    python = tmp_path / "env" / "bin" / "python"
    made = subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "env"], check=False)
    assert made.returncode == 0, "the environment cannot be made"
    wanted = f"{wheel}[{extra}]"
    command = [uv, "pip", "install", "--quiet", "--python", python, "--resolution", "lowest-direct", wanted]
    installed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert installed.returncode == 0, f"the extra {extra} cannot be installed:\n{installed.stderr}"
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    shown = subprocess.run(
        [python, "-c", code, *MODULES[extra]], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert shown.returncode == 0, shown.stderr
