"""Task packages: reading, checking and converting them. Pure: nothing is executed.

Names are imported on first use, so that a command loads only what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from benchflow.task.config.task_config import TaskConfig
    from benchflow.task.document.task_document import TaskDocument, TaskDocumentParseError
    from benchflow.task.document.task_toml import InboundCompatibility, import_task_config_toml
    from benchflow.task.interop.migration import render_task_md_from_legacy
    from benchflow.task.interop.roundtrip_report import build_harbor_roundtrip_conformance_report
    from benchflow.task.interop.split_export import build_compatibility_export_report, export_task_to_split_layout
    from benchflow.task.normalization import render_normalized_task_md
    from benchflow.task.package import TaskPackage, load_package
    from benchflow.task.runtime_capabilities import (
        UnsupportedTaskFeature,
        UnsupportedTaskFeatureError,
        validate_task_runtime_support,
    )
    from benchflow.task.runtime_view import TaskRuntimeView
    from benchflow.task.verifier.verifier_document import (
        VerifierDocument,
        VerifierDocumentParseError,
        load_verifier_document,
    )

__all__ = [
    "InboundCompatibility",
    "TaskConfig",
    "TaskDocument",
    "TaskDocumentParseError",
    "TaskPackage",
    "TaskRuntimeView",
    "UnsupportedTaskFeature",
    "UnsupportedTaskFeatureError",
    "VerifierDocument",
    "VerifierDocumentParseError",
    "build_compatibility_export_report",
    "build_harbor_roundtrip_conformance_report",
    "export_task_to_split_layout",
    "import_task_config_toml",
    "load_package",
    "load_verifier_document",
    "render_normalized_task_md",
    "render_task_md_from_legacy",
    "validate_task_runtime_support",
]

__getattr__ = lazy_names(
    __name__,
    {
        "benchflow.task.config.task_config": "TaskConfig",
        "benchflow.task.document.task_document": "TaskDocument TaskDocumentParseError",
        "benchflow.task.document.task_toml": "InboundCompatibility import_task_config_toml",
        "benchflow.task.interop.migration": "render_task_md_from_legacy",
        "benchflow.task.interop.roundtrip_report": "build_harbor_roundtrip_conformance_report",
        "benchflow.task.interop.split_export": "build_compatibility_export_report export_task_to_split_layout",
        "benchflow.task.normalization": "render_normalized_task_md",
        "benchflow.task.package": "TaskPackage load_package",
        "benchflow.task.runtime_capabilities": (
            "UnsupportedTaskFeature UnsupportedTaskFeatureError validate_task_runtime_support"
        ),
        "benchflow.task.runtime_view": "TaskRuntimeView",
        "benchflow.task.verifier.verifier_document": (
            "VerifierDocument VerifierDocumentParseError load_verifier_document"
        ),
        "benchflow.verifier": "Verifier",
    },
)
