"""Files that act on programs run beside them: start-up code, test-runner hooks, bytecode, shadowing modules.

Pure predicates on names; `survival` decides what follows from them.
"""

from __future__ import annotations

import re
import sys
from typing import Final

PYTEST_FILES: Final = frozenset({"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"})
"""Files that configure pytest as a whole."""

SECTION_FILES: Final = frozenset({"pyproject.toml", "setup.cfg", "tox.ini"})
"""Files of which one section configures pytest."""

_RUNNER_FILES: Final = re.compile(
    r"(jest|vitest|playwright|karma)\.(config|conf)\.[a-z]+|\.mocharc(\.[a-z]+)?|\.rspec|phpunit\.xml(\.dist)?"
    r"|\.coveragerc|\.nycrc(\.json)?|\.jasmine\.json"
)
_STARTUP_MODULES: Final = frozenset({"sitecustomize", "usercustomize"})
_MODULE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\.pyc?|(\.[A-Za-z0-9_-]+)?\.so)")
_BYTECODE: Final = (".pyc", ".pyo")
_METADATA: Final = (".dist-info", ".egg-info")
_RUNNER_MODULES: Final = frozenset(
    {
        "_pytest", "attr", "attrs", "colorama", "coverage", "exceptiongroup", "hypothesis", "importlib_metadata",
        "iniconfig", "nose", "numpy", "packaging", "pandas", "pip", "pkg_resources", "pluggy", "py", "pygments",
        "pytest", "requests", "rewardkit", "setuptools", "six", "tomli", "typing_extensions", "xdist", "yaml", "zipp",
    }
)  # fmt: skip
_ORDINARY: Final = frozenset({"test", "this", "antigravity", "turtledemo", "idlelib", "lib2to3"})
"""Modules of the standard library whose names people use for their own files and that nothing else imports."""
_SHADOWED: Final = (sys.stdlib_module_names | _RUNNER_MODULES) - _ORDINARY
_HOME_FILES: Final = frozenset({"bin"})


def is_startup(name: str) -> bool:
    """Code that every Python interpreter runs at start."""
    return name.endswith(".pth") or module_name(name) in _STARTUP_MODULES or name in _STARTUP_MODULES


def is_program(name: str) -> bool:
    """Code that makes a folder executable, so that running a script of the folder's name runs it."""
    return module_name(name) == "__main__"


def is_bytecode(name: str) -> bool:
    return name == "__pycache__" or name.endswith(_BYTECODE)


def is_runner_hook(parents: list[str], name: str) -> bool:
    """Configuration and code that a test runner loads from its working folder."""
    if name in PYTEST_FILES or _RUNNER_FILES.fullmatch(name):
        return True
    if name in ("config", "config.toml"):
        return parents[-1:] == [".cargo"]
    return name == "entry_points.txt" and bool(parents) and parents[-1].endswith(_METADATA)


def is_repository_hook(parents: list[str], name: str) -> bool:
    """A program that git runs on its own."""
    return parents[-2:] == [".git", "hooks"] and not name.endswith(".sample")


def module_name(name: str) -> str | None:
    """The name of the module that this file defines, if it is one."""
    found = _MODULE.fullmatch(name)
    return found[1] if found else None


def shadows(module: str | None) -> bool:
    """Whether a module of this name shadows one that verifiers import."""
    return module in _SHADOWED


def is_home_setting(name: str) -> bool:
    """Files that shells and tools read from a home folder."""
    return name.startswith(".") or name in _HOME_FILES
