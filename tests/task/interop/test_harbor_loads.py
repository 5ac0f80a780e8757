"""Harbor's own loader loads every export, except those whose report says that it refuses them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from peers import HARBOR_LOADER, PeerUnavailable, harbor_answers, peer_environment

from benchflow.task.interop.migration import migrate_task_to_task_md
from benchflow.task.interop.split_export import export_task_to_split_layout

EXAMPLES = Path(__file__).parents[3] / "examples" / "packages"
REFUSED = {
    "explain-outage",
    "forecast-demand",
    "guess-the-number",
    "haggle-arena",
    "pack-boxes",
    "summarise-minutes",
    "tip-auction",
}
pytestmark = pytest.mark.slow
Load = Callable[..., dict[str, str | None]]


@pytest.fixture(scope="module")
def load() -> Load:
    """What Harbor says of each folder: None, or why it refuses it."""
    try:
        peer_environment(*HARBOR_LOADER, dependencies=False)
    except PeerUnavailable as error:
        pytest.skip(str(error))

    def loaded(*folders: Path) -> dict[str, str | None]:
        return {Path(path).name: answer for path, answer in harbor_answers(folders).items()}

    return loaded


def agrees(load: Load, packages: list[Path], out: Path) -> dict[str, str]:
    """Export the packages; the statuses, after Harbor agreed with each."""
    statuses = {path.name: export_task_to_split_layout(path, out / path.name).status for path in packages}
    answers = load(*(out / name for name in statuses))
    wrong = {
        name: answers[name] for name in statuses if (answers[name] is None) == (statuses[name] == "target-refuses")
    }
    assert wrong == {}
    return statuses


def test_every_example_is_loaded_or_refused_as_reported(load, tmp_path):
    statuses = agrees(load, sorted(EXAMPLES.iterdir()), tmp_path)
    assert {name for name, status in statuses.items() if status == "target-refuses"} == REFUSED


STRATEGIES = {
    "script": "{type: script, command: ./test.sh}",
    "other-script": "{type: script, command: python3 check.py}",
    "script-with-arguments": "{type: script, command: ./test.sh --all}",
    "kit": "{type: reward-kit, root: kit}",
    "kit-checks": "{type: reward-kit, root: checks}",
    "hybrid": "{type: hybrid, combine: weighted_sum, factors: {a: {strategy: one, weight: 1}, b: {strategy: kit, weight: 2}}}",  # noqa: E501
    "judge": "{type: llm-judge, rubric: rubric.toml}",
    "hybrid-judge": "{type: hybrid, factors: {a: one, b: judge}}",
    "agent-judge": "{type: agent-judge, role: r, isolation: verifier-only, inputs: [/app/x]}",
    "episode": "{type: ors-episode}",
    "gain": "{type: gain, strategy: one}",
    "board": "{type: leaderboard-submission, inputs: [/app/x], command: ./test.sh}",
    "assessor": "{type: assessor, role: r}",
}
RUNS = {"script", "other-script", "script-with-arguments", "kit", "kit-checks", "hybrid"}
DOCUMENT = """\
---
verifier:
  default_strategy: main
  strategies:
    main: {MAIN}
    one: {type: script, command: python3 check.py}
    kit: {type: reward-kit, root: kit}
    judge: {type: llm-judge, rubric: rubric.toml}
---
## role:r

Judge it.
"""


@pytest.mark.parametrize("own", [True, False], ids=["with-test-sh", "without"])
def test_every_strategy_is_loaded_or_refused_as_reported(load, make_native, tmp_path, own):
    packages = []
    for name, strategy in STRATEGIES.items():
        if not own and "test.sh" in strategy:
            continue
        folder = make_native("schema_version: '1.3'", verifier__verifier_DOT_md=DOCUMENT.replace("{MAIN}", strategy))
        for file in ("check.py", "kit/reward.py", "checks/a.py", "rubric.toml"):
            (folder / "verifier" / file).parent.mkdir(exist_ok=True)
            (folder / "verifier" / file).write_text("")
        if not own:
            (folder / "verifier/test.sh").unlink()
        packages.append(folder.rename(tmp_path / name))
    statuses = agrees(load, packages, tmp_path / "out")
    assert {name for name, status in statuses.items() if status != "target-refuses"} == RUNS & statuses.keys()


SETTINGS = {
    "described": "task: {name: a/b, version: '1', authors: [{name: x}]}",
    "steps": "steps: [{name: one}]",
    "image": "environment: {docker_image: debian}",
    "judge": "verifier: {type: llm-judge}",
    "artifact": "artifacts: [{source: /a, destination: manifest.json}]",
    "separate": "verifier: {isolation: separate}",
    "hosts": "agent: {network_mode: allowlist, allowed_hosts: ['*.example.org']}",
    "header": "environment: {mcp_servers: [{name: a, url: 'http://x', headers: {Authorization: secret}}]}",
    "health": "environment: {healthcheck: {command: 'true'}}",
    "windows": "environment: {os: windows}",
}


def test_every_setting_is_loaded_or_refused_as_reported(load, make_native, tmp_path):
    packages = []
    for name, frontmatter in SETTINGS.items():
        folder = make_native(f"schema_version: '1.3'\n{frontmatter}")
        packages.append(folder.rename(tmp_path / name))
    agrees(load, packages, tmp_path / "out")


def test_a_migrated_terminal_bench_task_is_loaded(load, terminal_bench, tmp_path):
    migrate_task_to_task_md(terminal_bench, remove_legacy=True)
    assert agrees(load, [terminal_bench], tmp_path / "out") == {"hello": "lossless"}


SPELLINGS = {
    "old": 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "10G"\nallow_internet = false\n',
    "native": '[oracle]\nA = "b"\n[sandbox]\n[reward]\n[verifier]\ntype = "test-script"\n[verifier.hardening]\n',
    "types": '[environment]\ncpus = "2"\nos = "Linux"\n[verifier]\ntimeout_sec = "60"\n[metadata]\nat = 07:32:00\n',
}


def test_a_migrated_split_task_is_loaded_in_the_spelling_of_its_source(load, split, steps, tree, tmp_path):
    packages = [split, steps]
    for name, toml in SPELLINGS.items():
        packages.append(tree(shutil.copytree(split, tmp_path / name), {"task.toml": toml}))
    for package in packages:
        migrate_task_to_task_md(package, remove_legacy=True)
    assert set(agrees(load, packages, tmp_path / "out").values()) == {"lossless"}
