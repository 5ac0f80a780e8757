"""`benchflow.task` offers the names of the standard and stays light."""

from __future__ import annotations

import subprocess
import sys

import pytest

import benchflow.task

NAMES = [
    "TaskDocument",
    "TaskDocumentParseError",
    "TaskConfig",
    "TaskPackage",
    "TaskRuntimeView",
    "VerifierDocument",
    "VerifierDocumentParseError",
    "load_verifier_document",
    "validate_task_runtime_support",
    "UnsupportedTaskFeature",
    "UnsupportedTaskFeatureError",
    "import_task_config_toml",
    "InboundCompatibility",
    "export_task_to_split_layout",
    "build_compatibility_export_report",
    "build_harbor_roundtrip_conformance_report",
    "render_normalized_task_md",
    "render_task_md_from_legacy",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_names_of_the_standard_can_be_imported(name: str) -> None:
    assert getattr(benchflow.task, name).__name__ == name
    assert name in dir(benchflow.task)


def test_other_names_are_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = benchflow.task.Nonsense


def test_loading_a_package_imports_no_runtime(make_package) -> None:
    code = (
        "import sys; from benchflow.task import load_package;"
        "load_package(sys.argv[1], sandbox='local').to_dict();"
        "bad = ('pydantic', 'anyio', 'asyncio', 'click', 'rich', 'importlib.metadata');"
        "light = ('benchflow.sandbox', 'benchflow.sandbox.backends');"
        "print([name for name in sys.modules if name in bad or name.startswith(light[0]) and name not in light])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(make_package())], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
