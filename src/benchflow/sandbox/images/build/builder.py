"""Executes a Dockerfile, instruction by instruction, into a stack of layers.

Every instruction that changes files makes one layer, known by the hash of what went into it: made once, by
the first caller, and reused by all others. Files are copied by this process; commands run in a
sandbox, through the `RunLayer` that the builder is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, Protocol

import anyio

from benchflow.errors import EnvironmentFailure, UsageError
from benchflow.sandbox.images.build.bases import HOST, IMAGE_MISSING, Bases, Obtain
from benchflow.sandbox.images.build.build_stage import SETTINGS, Stage, workdir_after
from benchflow.sandbox.images.build.copy_files import Ownership, SourceTree, hash_all
from benchflow.sandbox.images.build.copy_step import (
    CopyRequest,
    fingerprint_copy,
    read_request,
    resolve_owner,
    write_copy,
)
from benchflow.sandbox.images.build.layer_writer import make_directory
from benchflow.sandbox.images.build.run_step import RunStep, Tail, read_run
from benchflow.sandbox.images.build.stage_plan import BuildPlan, StagePlan, plan_build, unsupported
from benchflow.sandbox.images.dockerfile.dockerignore import context_rules
from benchflow.sandbox.images.dockerfile.instructions import Instruction, parse_dockerfile
from benchflow.sandbox.images.image_registry import ImageRegistry, make_image
from benchflow.sandbox.images.layer_store import MakeLayer
from benchflow.sandbox.images.layer_tree import Branch, LayerTree
from benchflow.sandbox.images.substitutes import lacking
from benchflow.sandbox.protocol import ExecResult, Image, NetworkPolicy, OutputSink

_PUBLIC: Final = NetworkPolicy("public")
_PREDEFINED: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"})


HostBranches = Callable[[], Awaitable[Sequence[Branch]]]


class RunLayer(Protocol):
    """Runs a command in a sandbox on `image` so that what it changes lands in the folder `layer`."""

    async def __call__(self, image: Image, step: RunStep, layer: Path, on_output: OutputSink) -> ExecResult: ...


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How a Dockerfile is built."""

    dockerfile: str = "Dockerfile"
    """Relative to the context."""
    base_image: str | None = None
    """Substitute for a base image that is not registered: `host` or a registered image."""
    timeout_sec: float | None = None
    network: NetworkPolicy = _PUBLIC
    build_args: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None
    on_progress: Callable[[str], None] | None = None
    on_output: OutputSink | None = None


class DockerfileBuilder:
    """Builds into one store; `host` gives the branches of this machine's userland."""

    def __init__(
        self,
        registry: ImageRegistry,
        run_layer: RunLayer,
        host: HostBranches | None = None,
        obtain: Obtain | None = None,
    ) -> None:
        """`obtain` finds base images; by default only those in the store."""
        self.registry: Final = registry
        self.run_layer: Final = run_layer
        self.host: Final = host
        self.obtain: Final = obtain

    async def build(self, context: Path, options: BuildOptions | None = None) -> Image:
        """The environment that the Dockerfile in `context` describes.

        Raises `EnvironmentFailure` (codes `dockerfile-invalid`, `image-missing`, `build-failed`,
        `copy-failed`, `build-timeout`), `UnsupportedError`, or `InfrastructureFailure` when the disk is
        full.
        """
        options = options or BuildOptions()
        plan = self._plan(context, options)
        build = _Build(self, plan, context, options)
        await build.prepare()
        with anyio.move_on_after(options.timeout_sec) as limit:
            stage = await build.stage(plan.target)
        if limit.cancelled_caught:
            where = f" at line {build.current.line}: {_short(build.current)}" if build.current else ""
            message = (
                f"The build of {options.dockerfile} exceeded its limit of {options.timeout_sec:g} s; stopped{where}."
            )
            line = build.current.line if build.current else None
            raise EnvironmentFailure(message, code="build-timeout", file=options.dockerfile, line=line)
        image = build.image(stage)
        return replace(
            image,
            base_digest=stage.base_digest,
            fidelity=stage.fidelity,
            instead_of=stage.instead_of,
            lacks=stage.lacks,
        )

    def _plan(self, context: Path, options: BuildOptions) -> BuildPlan:
        path = context / options.dockerfile
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            message = f"{context} has no {options.dockerfile}."
            raise EnvironmentFailure(message, code="dockerfile-missing", file=options.dockerfile) from None
        except (OSError, UnicodeDecodeError) as error:
            message = f"{options.dockerfile} is not valid text."
            raise EnvironmentFailure(message, code="dockerfile-invalid", file=options.dockerfile) from error
        parsed = parse_dockerfile(text, options.dockerfile)
        declared = {w.partition("=")[0] for i in parsed.instructions if i.keyword == "ARG" for w in i.value.split()}
        unknown = sorted(set(options.build_args) - declared - _PREDEFINED)
        if unknown:
            raise UsageError(f"{options.dockerfile} declares no ARG {unknown[0]}.", code="build-arg")
        return plan_build(parsed, options.build_args, options.target)


class _Build:
    """One build on its way."""

    def __init__(self, builder: DockerfileBuilder, plan: BuildPlan, context: Path, options: BuildOptions) -> None:
        self.builder = builder
        self.store = builder.registry.store
        self.plan = plan
        self.options = options
        self.bases = Bases(builder.registry, options.base_image, builder.obtain)
        self.context = SourceTree(
            LayerTree([context]), context_rules(context, options.dockerfile), what="the build context"
        )
        self.current: Instruction | None = None
        self._stages: dict[int, Stage] = {}
        self._open: set[int] = set()
        self._host: Sequence[Branch] = ()

    async def prepare(self) -> None:
        """Prepare this machine's userland if the build may use it as its base."""
        if self.options.base_image == HOST and self.builder.host is not None:
            self._host = await self.builder.host()

    async def stage(self, index: int) -> Stage:
        """The stage of that number, built when first needed."""
        if index in self._stages:
            return self._stages[index]
        written = self.plan.stages[index]
        self._open.add(index)
        self.current = written.start
        if written.parent is not None:
            stage = replace(await self.stage(written.parent), args={}, has_command=False)
        else:
            stage = await self._located(written.start, self.bases.stage(written.image))
            stage = await self._compared(stage, written)
        if stage.config.triggers:
            message = f"the base image {written.image} has ONBUILD instructions, which are not supported"
            raise unsupported(written.start, self.plan.scope, message)
        for instruction in written.body:
            self.current = instruction
            stage = await self._located(instruction, self._execute(stage, instruction))
        self._stages[index] = stage
        self._open.discard(index)
        return stage

    async def _compared(self, stage: Stage, written: StagePlan) -> Stage:
        """The stage with what its base lacks, where that is a substitute."""
        if stage.fidelity != "substituted":
            return stage
        runs = [instruction.value for instruction in written.body if instruction.keyword == "RUN"]
        lacks = await self.store.work.look(lacking, written.image, runs, self.tree(stage))
        return replace(stage, lacks=lacks)

    async def _located(self, instruction: Instruction, work: Awaitable[Stage]) -> Stage:
        """Say where in the Dockerfile a failure happened."""
        cause: Exception
        try:
            return await work
        except EnvironmentFailure as error:
            if error.line is not None:
                raise
            code, reason, cause = error.code, str(error), error
        except OSError as error:
            code, reason, cause = "copy-failed", f"{Path(error.filename or '').name}: {error.strerror}", error
        file = self.plan.scope.file
        message = f"{file} line {instruction.line}: {_short(instruction)}: {reason}"
        raise EnvironmentFailure(message, code=code, path="environment", file=file, line=instruction.line) from cause

    async def _execute(self, stage: Stage, instruction: Instruction) -> Stage:
        match instruction.keyword:
            case "RUN":
                return await self._run(stage, instruction)
            case "COPY" | "ADD":
                return await self._copy(stage, instruction)
            case "WORKDIR":
                return await self._workdir(stage, instruction)
        return SETTINGS[instruction.keyword](stage, instruction, self.plan.scope)

    async def _workdir(self, stage: Stage, instruction: Instruction) -> Stage:
        path = workdir_after(stage, instruction, self.plan.scope)
        stage = replace(stage, config=replace(stage.config, workdir=path))
        existing = await self.store.work.look(self.tree(stage).find, path)
        if existing is not None and existing.is_directory:
            return stage

        async def make(folder: Path) -> None:
            await self.store.work.run(make_directory, folder, self.branches(stage), path)

        return await self._layer(stage, instruction, hash_all([stage.key, "WORKDIR", path]), make)

    async def _run(self, stage: Stage, instruction: Instruction) -> Stage:
        step = read_run(instruction, stage, self.plan.scope, self.options.network)

        async def make(folder: Path) -> None:
            tail = Tail()

            def sink(stream: Literal["stdout", "stderr"], data: bytes) -> None:
                tail(stream, data)
                if self.options.on_output is not None:
                    self.options.on_output(stream, data)

            result = await self.builder.run_layer(self.image(stage), step, folder, sink)
            if not result.ok:
                raise self._failed(instruction, result, tail)

        return await self._layer(stage, instruction, hash_all([stage.key, "RUN", *step.fingerprint()]), make)

    def _failed(self, instruction: Instruction, result: ExecResult, tail: Tail) -> EnvironmentFailure:
        file = self.plan.scope.file
        lines = tail.text() or "(it printed nothing)"
        message = (
            f"{file} line {instruction.line}: {_short(instruction)} exited with code {result.exit_code}. "
            f"Its last lines:\n{lines}"
        )
        return EnvironmentFailure(message, code="build-failed", path="environment", file=file, line=instruction.line)

    async def _copy(self, stage: Stage, instruction: Instruction) -> Stage:
        request = read_request(instruction, stage, self.plan.scope)
        source, tree = await self._source(request)
        if source is not None and source.fidelity == "substituted":
            replaced = tuple(dict.fromkeys((*stage.instead_of, *source.instead_of)))
            lacks = tuple(dict.fromkeys((*stage.lacks, *source.lacks)))
            stage = replace(stage, fidelity="substituted", instead_of=replaced, lacks=lacks)
        owner = await self._owner(stage, request)

        key = hash_all([stage.key, "COPY", await self.store.work.look(fingerprint_copy, request, tree, owner)])

        async def make(folder: Path) -> None:
            below = () if request.independent else self.branches(stage)
            async with self.store.scratch(f"add-{key}") as scratch:
                await self.store.work.run(write_copy, request, tree, owner, folder, below, scratch)

        return await self._layer(stage, instruction, key, make)

    async def _source(self, request: CopyRequest) -> tuple[Stage | None, SourceTree]:
        """Where a COPY reads from: the build context, an earlier stage, or another image."""
        if request.stage is None:
            return None, self.context
        current = self.current
        written = self.plan.find(request.stage)
        if written is not None and current is not None and written.start.line > current.line:
            raise EnvironmentFailure(f"the stage {request.stage} is defined later", code="dockerfile-invalid")
        if written is not None and written.index in self._open:
            raise EnvironmentFailure(
                f"the stage {request.stage} is not complete at this point", code="dockerfile-invalid"
            )
        stage = await (self.stage(written.index) if written else self._copied_image(request.stage))
        self.current = current
        return stage, SourceTree(self.tree(stage), what=f"{request.stage}")

    async def _copied_image(self, name: str) -> Stage:
        """The image whose files are copied; no other image has them, so nothing replaces it."""
        try:
            return await self.bases.exact(name)
        except EnvironmentFailure as error:
            if error.code != IMAGE_MISSING:
                raise
            message = f"its files are copied, so no other image can replace it. {error}"
            raise EnvironmentFailure(message, code=IMAGE_MISSING) from error

    async def _owner(self, stage: Stage, request: CopyRequest) -> Ownership:
        if request.owner is not None:
            uid, gid = await self.store.work.look(resolve_owner, request.owner, self.tree(stage))
            return Ownership(uid, gid, request.mode)
        if request.stage is not None:
            return Ownership(None, None, request.mode)
        return Ownership(0, 0, request.mode)

    async def _layer(self, stage: Stage, instruction: Instruction, key: str, make: MakeLayer) -> Stage:
        path, existed = await self.store.layer(key, make, stage.layers)
        if self.options.on_progress is not None:
            self.options.on_progress(f"{'cached' if existed else 'built '} {_short(instruction)}")
        # A layer that changes nothing costs a mount for nothing.
        layers = (*stage.layers, key) if any(path.iterdir()) else stage.layers
        return replace(stage, key=key, layers=layers)

    def branches(self, stage: Stage) -> list[Branch | Path]:
        host = self._host if stage.on_host else ()
        return [*host, *(self.store.path(key) for key in stage.layers)]

    def tree(self, stage: Stage) -> LayerTree:
        return LayerTree(self.branches(stage))

    def image(self, stage: Stage) -> Image:
        base = HOST if stage.on_host else stage.base
        return make_image(self.store, stage.layers, stage.config, base=base)


def _short(instruction: Instruction) -> str:
    text = " ".join(str(instruction).split())
    return text if len(text) <= 100 else text[:97] + "…"
