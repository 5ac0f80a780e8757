"""The report of an export: what is kept, restored and lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchflow.errors import IssuesError


class ExportRefusedError(IssuesError):
    """A package that cannot be exported."""

    default_code = "export-refused"


@dataclass(frozen=True, slots=True)
class CompatibilityExportLoss:
    """One native concept that the target cannot express."""

    path: str
    reason: str
    severity: Literal["loss", "warning", "refusal"] = "loss"
    """`loss`: something runs or scores differently. `warning`: only information is lost. `refusal`: the target does
    not load, or cannot run, the export."""


@dataclass(frozen=True, slots=True)
class CompatibilityExportReport:
    """An export, or the preview of one, which has no `emitted_files` and no `output_hashes`."""

    target: str
    source_task_dir: str
    selected_entrypoint: str
    selected_prompt: str | None
    selected_oracle_dir: str | None
    selected_verifier_dir: str | None
    input_hashes: Mapping[str, str] = field(default_factory=dict)
    output_hashes: Mapping[str, str] = field(default_factory=dict)
    emitted_files: tuple[str, ...] = ()
    restored_extension_paths: tuple[str, ...] = ()
    alias_collisions: tuple[str, ...] = ()
    losses: tuple[CompatibilityExportLoss, ...] = ()

    @property
    def status(self) -> Literal["lossless", "degraded", "target-refuses"]:
        if any(loss.severity == "refusal" for loss in self.losses):
            return "target-refuses"
        return "degraded" if self.losses else "lossless"

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "status": self.status,
            "source_task_dir": self.source_task_dir,
            "selected_entrypoint": self.selected_entrypoint,
            "selected_prompt": self.selected_prompt,
            "selected_oracle_dir": self.selected_oracle_dir,
            "selected_verifier_dir": self.selected_verifier_dir,
            "emitted_files": list(self.emitted_files),
            "input_hashes": dict(self.input_hashes),
            "output_hashes": dict(self.output_hashes),
            "restored_extension_paths": list(self.restored_extension_paths),
            "alias_collisions": list(self.alias_collisions),
            "losses": [asdict(loss) for loss in self.losses],
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
