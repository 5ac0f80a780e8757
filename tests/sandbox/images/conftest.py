"""A store of its own for every test, tars made by hand, and a builder whose RUN is played by a function."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from benchflow.sandbox.images import BuildOptions, DockerfileBuilder, ImageRegistry, LayerStore
from benchflow.sandbox.protocol import ExecResult


@pytest.fixture
def store(tmp_path):
    store = LayerStore(tmp_path / "store")
    store.prepare()
    return store


@pytest.fixture
def registry(store):
    return ImageRegistry(store)


def make_tar(*entries, compress=""):
    """A tar in memory of `(name, content)` with text for files, None for folders, or whole `TarInfo` objects."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{compress}") as archive:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            name, content = entry
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
            else:
                data = content.encode()
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    buffer.seek(0)
    return buffer


@pytest.fixture
def tar():
    return make_tar


class Player:
    """Stands in for a sandbox: `RUN x` leaves a file `/ran/<hash of the command>` that holds the command."""

    def __init__(self):
        self.steps = []
        self.exit_code = 0

    async def __call__(self, image, step, layer, on_output):
        self.steps.append(step)
        on_output("stdout", b"a line of output\n")
        name = hashlib.sha256(repr(step.command).encode()).hexdigest()[:8]
        (layer / "ran").mkdir()
        (layer / "ran" / name).write_text(repr(step.command))
        return ExecResult(self.exit_code, b"", b"", 0.0)


@pytest.fixture
def player():
    return Player()


@pytest.fixture
def context(tmp_path):
    folder = tmp_path / "context"
    folder.mkdir()
    return folder


def write_dockerfile(context, text):
    Path(context, "Dockerfile").write_text(text)


@pytest.fixture
def build(registry, player, context):
    """Build `text` in the context; gives the image."""

    async def build(text, **options):
        write_dockerfile(context, text)
        return await DockerfileBuilder(registry, player).build(context, BuildOptions(**options))

    return build
