"""The shipped programs are exactly what their source gives, with the compiler of the distribution they are built on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/build-programs"
SOURCE = ROOT / "src/benchflow"
MOST_BYTES = {"anchor": 16_384, "entry": 4096, "pin": 4096, "missed": 8192, "clock": 70_000}


MACHINES = ("x86_64", "aarch64")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All programs. Whoever has another compiler is told so; continuous integration has this one, or fails."""
    give_up = pytest.fail if os.environ.get("CI") else pytest.skip
    wanted = re.search(r"^version=(.+)$", SCRIPT.read_text(), re.MULTILINE)
    assert wanted is not None
    for compiler in (f"{machine}-linux-gnu-gcc" for machine in MACHINES):
        if shutil.which(compiler) is None:
            give_up(f"{compiler} is missing; `make system` installs it.")
        asked = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=True)
        found = asked.stdout.strip()
        if found != wanted[1]:
            give_up(f"{compiler} is version {found}, and what is shipped is built with {wanted[1]}.")
    folder = tmp_path_factory.mktemp("programs")
    subprocess.run([SCRIPT, folder], check=True, timeout=300)
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("programs")
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("program", MOST_BYTES)
def test_a_shipped_program_is_what_its_source_gives(program: str, machine: str, built: Path) -> None:
    (shipped,) = SOURCE.rglob(f"{program}-{machine}")
    again = (built / shipped.name).read_bytes()
    assert len(again) < MOST_BYTES[program]
    assert again == shipped.read_bytes(), "run scripts/build-programs"


def test_every_shipped_program_is_compared() -> None:
    elf = {path.name for path in SOURCE.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"}
    assert elf == {f"{program}-{machine}" for program in MOST_BYTES for machine in MACHINES}
