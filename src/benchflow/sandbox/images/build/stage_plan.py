"""Stages of a Dockerfile: where each begins, what it starts from, and which one is the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchflow.errors import UnsupportedError
from benchflow.sandbox.images.build.build_stage import Scope, declare_arguments
from benchflow.sandbox.images.dockerfile.instructions import Dockerfile, Instruction
from benchflow.sandbox.images.oci import machine_architecture

_FLAGS: Final[Mapping[str, frozenset[str]]] = {
    "FROM": frozenset({"platform"}),
    "RUN": frozenset({"network"}),
    "COPY": frozenset({"from", "chown", "chmod", "link", "exclude"}),
    "ADD": frozenset({"chown", "chmod", "link", "exclude"}),
    "HEALTHCHECK": frozenset({"interval", "timeout", "start-period", "start-interval", "retries"}),
}


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage as written."""

    index: int
    name: str | None
    image: str
    """What FROM names, variables replaced: an image, `scratch`, or the name of an earlier stage."""
    parent: int | None
    """The earlier stage it starts from."""
    start: Instruction
    body: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The stages that the target needs, in order; the last one is the target."""

    scope: Scope
    stages: tuple[StagePlan, ...]
    target: int

    def find(self, reference: str) -> StagePlan | None:
        """The stage that `--from` names, by name or number."""
        for stage in self.stages:
            if reference.lower() == stage.name or reference == str(stage.index):
                return stage
        return None


def plan_build(dockerfile: Dockerfile, given: Mapping[str, str], target: str | None = None) -> BuildPlan:
    """Split into stages and check what can be checked without building."""
    scope = Scope(dockerfile.file, dockerfile.escape, given, dict(_platform_arguments()))
    stages: list[StagePlan] = []
    pending: list[Instruction] = []
    for instruction in dockerfile.instructions:
        _check(instruction, scope)
        if instruction.keyword == "FROM":
            stages.append(_begin(instruction, scope, stages))
            pending = []
        elif stages:
            pending.append(instruction)
            stages[-1] = _replace_body(stages[-1], tuple(pending))
        elif instruction.keyword == "ARG":
            declared = declare_arguments(instruction, scope, scope.known, inherited=scope.known)
            scope = Scope(scope.file, scope.escape, scope.given, {**scope.known, **declared})
        else:
            raise scope.error(instruction, f"{instruction.keyword} comes before the first FROM.")
    if not stages:
        raise scope.error(dockerfile.instructions[-1], "FROM is missing.")
    plan = BuildPlan(scope, tuple(stages), len(stages) - 1)
    if target is not None:
        chosen = plan.find(target)
        if chosen is None:
            raise scope.error(stages[0].start, f"unknown stage {target}.")
        plan = BuildPlan(scope, tuple(stages), chosen.index)
    return plan


def _platform_arguments() -> dict[str, str]:
    architecture = machine_architecture()
    values: dict[str, str] = {}
    for prefix in ("TARGET", "BUILD"):
        values |= {
            f"{prefix}PLATFORM": f"linux/{architecture}",
            f"{prefix}OS": "linux",
            f"{prefix}ARCH": architecture,
            f"{prefix}VARIANT": "",
        }
    return values


def _begin(instruction: Instruction, scope: Scope, earlier: list[StagePlan]) -> StagePlan:
    words = scope.expand(instruction, instruction.value, scope.known).split()
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise scope.error(instruction, "FROM takes an image, optionally followed by AS and a name.")
    name = words[2].lower() if len(words) == 3 else None
    if name is not None and any(stage.name == name for stage in earlier):
        raise scope.error(instruction, f"two stages have the name {name}.")
    wanted = dict(instruction.flags).get("platform")
    if wanted is not None:
        platform = scope.expand(instruction, wanted, scope.known)
        if platform not in (f"linux/{machine_architecture()}", "linux"):
            message = f"this machine is linux/{machine_architecture()}, the stage is for {platform}"
            raise unsupported(instruction, scope, message)
    parent = next((stage.index for stage in earlier if stage.name == words[0].lower()), None)
    return StagePlan(len(earlier), name, words[0], parent, instruction, ())


def _replace_body(stage: StagePlan, body: tuple[Instruction, ...]) -> StagePlan:
    return StagePlan(stage.index, stage.name, stage.image, stage.parent, stage.start, body)


def _check(instruction: Instruction, scope: Scope) -> None:
    if instruction.keyword == "ONBUILD":
        raise unsupported(instruction, scope, "ONBUILD is not supported")
    known = _FLAGS.get(instruction.keyword, frozenset())
    for name, _ in instruction.flags:
        if name not in known:
            raise unsupported(instruction, scope, f"{instruction.keyword} --{name} is not supported")


def unsupported(instruction: Instruction, scope: Scope, what: str) -> UnsupportedError:
    """A valid instruction that this backend does not support."""
    message = (
        f"{scope.file} line {instruction.line}: {what} by the local sandbox; "
        "try a container engine (--sandbox docker or podman)."
    )
    return UnsupportedError(
        message, code="unsupported-instruction", path="environment", file=scope.file, line=instruction.line
    )
