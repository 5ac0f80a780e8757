"""Creates a new cube package from the template, with working code and tests."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
import tempfile
from pathlib import Path
from string import Template
from typing import Final

TEMPLATE: Final = Path(__file__).with_name("template")
TAKEN: Final = {"cube", "benchflow", "tests"}


def create_cube(name: str, parent: Path) -> Path:
    """Write the package `name` into a new folder below `parent`, atomically, and return the folder."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ValueError(
            f"'{name}' is not a valid name: use lower-case letters, digits and hyphens, such as my-benchmark."
        )
    package = name.replace("-", "_")
    if keyword.iskeyword(package) or package in sys.stdlib_module_names or package in TAKEN:
        raise ValueError(f"'{name}' is not a valid name: 'import {package}' already has a meaning in Python.")
    target = parent / name
    if target.exists():
        raise ValueError(f"{target} already exists.")
    if not parent.is_dir():
        raise ValueError(f"{parent} is not a folder.")
    words = {"name": name, "package": package, "prefix": "".join(part.capitalize() for part in name.split("-"))}
    staging = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
    try:
        for source in sorted(TEMPLATE.rglob("*.tmpl")):
            relative = source.relative_to(TEMPLATE).with_suffix("")
            path = staging.joinpath(*(package if part == "package" else part for part in relative.parts))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(source.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
        staging.chmod(0o755)
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return target
