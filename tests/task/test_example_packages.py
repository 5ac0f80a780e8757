"""The packages that are shipped as examples: publishable, canonical, and between them every strategy and mode."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchflow.task import build_compatibility_export_report, export_task_to_split_layout, load_package
from benchflow.task.checks import check_folder
from benchflow.task.config.interaction import INTERACTION_MODES
from benchflow.task.normalization import normalize_package
from benchflow.task.verifier.declared_strategies import STRATEGIES

EXAMPLES = Path(__file__).parents[2] / "examples" / "packages"
PACKAGES = sorted(path.parent for path in EXAMPLES.glob("*/task.md"))
every_package = pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)


def test_there_are_at_least_eight() -> None:
    assert len(PACKAGES) >= 8


@every_package
def test_an_example_can_be_published(folder: Path) -> None:
    assert check_folder(folder, level="publication-grade").issues == ()


def test_every_strategy_is_selected_by_an_example() -> None:
    selected = {
        document.selected.type
        for folder in PACKAGES
        if (document := load_package(folder).verifier_document) is not None
    }
    assert selected == STRATEGIES.keys()


def test_every_interaction_mode_has_an_example() -> None:
    assert {load_package(folder).view.mode for folder in PACKAGES} == set(INTERACTION_MODES)


def test_every_example_runs_locally() -> None:
    refused = {folder.name for folder in PACKAGES if not load_package(folder, sandbox="local").runtime_supported}
    assert refused == set()


@every_package
def test_an_example_is_in_canonical_form(folder: Path) -> None:
    """Nothing is left to expand, respell or move; only the layout of the text may differ."""
    before = load_package(folder)
    done = normalize_package(folder)
    assert (done.prompts, done.issues) == ({}, ())
    assert before.document is not None
    after = type(before.document).from_text(done.text, sidecars=_sidecars(folder))
    assert after.frontmatter == before.document.frontmatter
    assert after.body.strip() == before.document.body.strip()


def _sidecars(folder: Path) -> dict[str, str]:
    return {path.stem.replace(".", ":", 1): path.read_text().strip() for path in sorted(folder.glob("prompts/*.md"))}


@every_package
def test_an_example_exports_and_says_what_that_costs(folder: Path, tmp_path: Path) -> None:
    package = load_package(folder)
    report = export_task_to_split_layout(folder, tmp_path / "out", sync=False)
    exported = load_package(tmp_path / "out")
    assert exported.valid
    assert exported.instruction is None or exported.instruction.strip() == (package.instruction or "").strip()
    lost = {loss.path for loss in report.losses}
    assert report.status in ("degraded", "target-refuses"), "a verifier document has no place in the split layout"
    assert lost == {loss.path for loss in build_compatibility_export_report(folder).losses}
    document = package.document
    assert document is not None
    owed = {f"benchflow.{key}" for key in document.namespace.to_declared_dict()}
    owed |= {"agents.roles"} if document.roles else set()
    owed |= {"scenes"} if document.scenes else set()
    owed |= {"user"} if document.user else set()
    owed |= {"prompts/"} if (folder / "prompts").is_dir() else set()
    owed |= {"verifier.verifier_md"}
    assert owed <= lost
    written = json.loads((tmp_path / "out/compatibility/export-report.json").read_text())
    assert written["losses"] == [{"path": x.path, "reason": x.reason, "severity": x.severity} for x in report.losses]


@every_package
def test_no_dump_of_an_example_tells_private_facts(folder: Path) -> None:
    package = load_package(folder, sandbox="local")
    facts = package.document.user.private_facts.values() if package.document and package.document.user else ()
    shown = json.dumps(package.to_dict()) + repr(package) + repr(package.document) + repr(package.view)
    assert [fact for fact in facts if fact in shown] == []
