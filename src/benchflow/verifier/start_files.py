"""Files that programs other than Python's read by themselves in the folder they run in: `reads_by_itself(names)`, pure.

Such a file of the agent is as built for the verifier, unless the task names it. Names come case-folded and normalised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_FILES: Final = re.compile(
    r"\.(rprofile|renviron|rdata|rprofile\.site)"  # R
    r"|\.(npmrc|yarnrc|yarnrc\.yml|yarnrc\.yaml|pnpmfile\.c?js|pnp\.(c?js|loader\.mjs)|taprc)|bunfig\.toml"  # Node
    r"|(jest|vitest|playwright|karma|ava|cypress|wdio|nightwatch)\.(config|conf)\.[a-z]+|\.mocharc(\.[a-z]+)?"
    r"|\.nycrc(\.[a-z]+)?|\.c8rc(\.[a-z]+)?|\.?jasmine\.json"
    r"|\.(rspec|rspec-local|gemrc|irbrc|pryrc|simplecov)"  # Ruby
    r"|\.(proverc|perltidyrc|perlcriticrc)"  # Perl
    r"|go\.work(\.sum)?|rust-toolchain(\.toml)?"
    r"|\.(sbtopts|jvmopts|mavenrc|hotspotrc|hotspot_compiler)|junit-platform\.properties"  # Java
    r"|phpunit\.xml(\.dist)?|\.user\.ini|php\.ini|\.busted|\.coveragerc"
    r"|\.(bazelrc|mise\.toml|tool-versions|gdbinit|lldbinit|exrc|octaverc|ghci|ocamlinit|sqliterc|psqlrc)"
    r"|gnumakefile"
)
_FOLDERS: Final = {
    ".cargo": re.compile(r"config(\.toml)?"),
    ".bundle": re.compile(r".*"),
    ".config": re.compile(r"(nextest|mise)\.toml"),
    ".mvn": re.compile(r".*"),
    "__mocks__": re.compile(r".*"),
    "support": re.compile(r"jasmine\.[a-z]+"),
    "testthat": re.compile(r"(helper|setup|teardown).*\.r"),
}
"""Files that are read in a folder of this name; the folder itself can be a link to another."""
_SERVICES: Final = ("meta-inf", "services")
_OF_JAVA: Final = ("java.", "javax.", "jdk.", "sun.", "com.sun.", "org.junit.")
"""Services that programs of Java load from the class path, which is the folder they run in by default."""


def reads_by_itself(names: Sequence[str], *, link: bool) -> bool:
    """Whether a program reads the file at this path without being told to; a `link` can stand for a whole folder."""
    *parents, name = names
    parent = parents[-1] if parents else ""
    if _FILES.fullmatch(name):
        return True
    if parent in _FOLDERS and _FOLDERS[parent].fullmatch(name):
        return True
    if tuple(parents[-2:]) == _SERVICES and name.startswith(_OF_JAVA):
        return True
    return link and (
        name in _FOLDERS.keys() - {".config", "support"} or name == _SERVICES[0] or tuple(names[-2:]) == _SERVICES
    )
