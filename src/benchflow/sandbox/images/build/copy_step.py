"""What one COPY or ADD asks for: read from the instruction, found in trees, written into a layer."""

from __future__ import annotations

import posixpath
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.build.build_stage import Scope, Stage
from benchflow.sandbox.images.build.copy_files import Copy, Ownership, SourceTree, hash_all
from benchflow.sandbox.images.build.layer_writer import LayerWriter
from benchflow.sandbox.images.build.stage_plan import unsupported
from benchflow.sandbox.images.dockerfile.dockerfile_words import WordError, expand
from benchflow.sandbox.images.dockerfile.dockerignore import IgnoreRules, ignore_rules
from benchflow.sandbox.images.dockerfile.instructions import Instruction
from benchflow.sandbox.images.layer_tree import Branch, LayerTree
from benchflow.sandbox.images.unpack import unpack_layer
from benchflow.sandbox.inside.accounts import UnknownUser, find_account

_REMOTE: Final = re.compile(r"[a-z][a-z0-9+.-]*://|git@")


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A COPY or ADD with its variables replaced."""

    patterns: tuple[str, ...]
    texts: tuple[tuple[str, bytes], ...]
    """Here-documents: name and content."""
    destination: str
    """Absolute."""
    into_folder: bool
    """Whether the destination is a folder by the way it is written."""
    stage: str | None
    """The stage or image of `--from`; None for the build context."""
    owner: str | None
    mode: int | None
    independent: bool
    """`--link`: the destination does not depend on the layers below."""
    left_out: IgnoreRules
    unpacks: bool
    """ADD: a local archive is unpacked."""


def read_request(instruction: Instruction, stage: Stage, scope: Scope) -> CopyRequest:
    """The request of a COPY or ADD; what is wrong with it is an error with its line."""
    flags = dict(instruction.flags)
    raw = instruction.words if instruction.words is not None else tuple(instruction.value.split())
    if len(raw) < 2:
        raise scope.error(instruction, f"{instruction.keyword} takes a source and a destination.")
    heredocs = iter(instruction.heredocs)
    patterns: list[str] = []
    texts: list[tuple[str, bytes]] = []
    for word in raw[:-1]:
        if instruction.words is None and re.match(r"\d*<<", word) and (here := next(heredocs, None)):
            text = _heredoc_text(here.text, stage, scope, instruction) if here.expand else here.text
            texts.append((here.name, text.encode()))
        else:
            patterns.append(scope.expand(instruction, word, stage.variables))
    wanted = scope.expand(instruction, raw[-1], stage.variables)
    into_folder = wanted in (".", "..") or wanted.endswith(("/", "/.", "/.."))
    if len(raw) > 2 and not into_folder:
        raise scope.error(instruction, f"with several sources the destination must end with /, not be {wanted}.")
    if instruction.keyword == "ADD" and any(_REMOTE.match(pattern) for pattern in patterns):
        raise unsupported(instruction, scope, "ADD of a remote address is not supported")
    excludes = [scope.expand(instruction, v, stage.variables) for name, v in instruction.flags if name == "exclude"]
    return CopyRequest(
        patterns=tuple(patterns),
        texts=tuple(texts),
        destination=posixpath.normpath(posixpath.join("/", stage.workdir, wanted)).replace("//", "/", 1),
        into_folder=into_folder,
        stage=flags.get("from"),
        owner=scope.expand(instruction, flags["chown"], stage.variables) if "chown" in flags else None,
        mode=_mode(instruction, stage, scope, flags.get("chmod")),
        independent=flags.get("link", "false") == "true",
        left_out=ignore_rules(excludes),
        unpacks=instruction.keyword == "ADD",
    )


def _heredoc_text(text: str, stage: Stage, scope: Scope, instruction: Instruction) -> str:
    try:
        return expand(text, stage.variables, scope.escape, keep_quotes=True)
    except WordError as error:
        raise scope.error(instruction, f"{error}.") from error


def _mode(instruction: Instruction, stage: Stage, scope: Scope, text: str | None) -> int | None:
    if text is None:
        return None
    value = scope.expand(instruction, text, stage.variables)
    if not re.fullmatch(r"[0-7]{3,4}", value):
        raise unsupported(instruction, scope, f"--chmod={value} is not an octal mode and not supported")
    return int(value, 8)


@dataclass(frozen=True, slots=True)
class CopyStep:
    """A request with its sources found, ready to be hashed and written."""

    request: CopyRequest
    copies: tuple[Copy, ...]
    owner: Ownership

    @classmethod
    def find(cls, request: CopyRequest, tree: SourceTree, owner: Ownership) -> CopyStep:
        """Match the patterns; one that names nothing is an `EnvironmentFailure`."""
        copies = [Copy(tree, source, request.left_out) for name in request.patterns for source in tree.match(name)]
        return cls(request, tuple(copies), owner)

    def fingerprint(self) -> Iterator[object]:
        """Everything that determines the content of the layer, given the layers below."""
        request = self.request
        yield from (request.destination, request.into_folder, request.independent, request.unpacks)
        yield from (self.owner.uid, self.owner.gid, self.owner.mode)
        for name, content in request.texts:
            yield from (name, content.hex())
        for copy in self.copies:
            yield from copy.fingerprint()

    def write(self, writer: LayerWriter, scratch: Path) -> None:
        """Put everything into the layer; `scratch` is an empty folder for archives on their way."""
        destination = self.request.destination
        existing = writer.tree.find(destination)
        several = len(self.copies) + len(self.request.texts) > 1
        as_folder = self.request.into_folder or several or (existing is not None and existing.is_directory)
        for name, content in self.request.texts:
            target = posixpath.join(destination, name) if as_folder else destination
            mode = 0o644 if self.owner.mode is None else self.owner.mode
            writer.file(target, content, mode=mode, uid=self.owner.uid or 0, gid=self.owner.gid or 0)
        for number, copy in enumerate(self.copies):
            if self.request.unpacks and copy.source.entry.is_file and tarfile.is_tarfile(copy.source.entry.source):
                unpacked = _unpacked(copy, scratch / str(number))
                owner = self.owner if self.request.owner is not None else Ownership(None, None, self.owner.mode)
                unpacked.apply(writer, destination, as_folder=True, owner=owner)
            else:
                copy.apply(writer, destination, as_folder=as_folder, owner=self.owner)


def fingerprint_copy(request: CopyRequest, tree: SourceTree, owner: Ownership) -> str:
    """The hash of everything that a copy puts into its layer."""
    return hash_all(CopyStep.find(request, tree, owner).fingerprint())


def write_copy(
    request: CopyRequest, tree: SourceTree, owner: Ownership, layer: Path, below: Sequence[Branch | Path], scratch: Path
) -> None:
    """Find and write, in one go: owners are read and set by the same process."""
    CopyStep.find(request, tree, owner).write(LayerWriter(layer, below), scratch)


def _unpacked(copy: Copy, folder: Path) -> Copy:
    """The contents of an archive as a folder to copy."""
    folder.mkdir()
    with copy.source.entry.source.open("rb") as stream:
        unpack_layer(stream, folder, whiteouts=False)
    tree = SourceTree(LayerTree([folder]), what=copy.source.name)
    return Copy(tree, tree.match("/")[0])


def resolve_owner(owner: str, tree: LayerTree) -> tuple[int, int]:
    """User and group ids of `USER[:GROUP]`; a number without group stands for the group of the same number."""
    user, _, group = owner.partition(":")
    if not group and (user or "0").isdecimal():
        return int(user or 0), int(user or 0)
    texts = [tree.read_text(path) or "" for path in ("/etc/passwd", "/etc/group")]
    try:
        account = find_account(f"{user or 0}:{group}", *texts, assumed=False)
    except UnknownUser as error:
        raise EnvironmentFailure(str(error), code="copy-failed") from None
    return account.uid, account.gid
