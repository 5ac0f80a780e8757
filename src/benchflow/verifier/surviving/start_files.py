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
    r"|(jest|vitest|playwright|karma|ava|cypress|wdio|nightwatch)\.(config|conf|projects|workspace)\.[a-z]+|\.mocharc(\.[a-z]+)?"
    r"|\.nycrc(\.[a-z]+)?|\.c8rc(\.[a-z]+)?|\.?jasmine\.json"
    r"|\.(rspec|rspec-local|gemrc|irbrc|pryrc|simplecov)|(rubygems|rbconfig)\.(rb|so)"  # Ruby, the last at its start
    r"|\.(proverc|perltidyrc|perlcriticrc)"  # Perl
    r"|go\.work(\.sum)?|rust-toolchain(\.toml)?"
    r"|\.(sbtopts|jvmopts|mavenrc|hotspotrc|hotspot_compiler)|junit-platform\.properties"  # Java
    r"|phpunit(\.dist)?\.xml(\.dist)?|\.user\.ini|php\.ini|\.busted|\.coveragerc"
    r"|\.(bazelrc|mise\.toml|tool-versions|gdbinit|lldbinit|exrc|octaverc|ghci|ocamlinit|sqliterc|psqlrc)"
    r"|gnumakefile|gems\.rb|ctestcustom\.(cmake|ctest)"
    r"|(s\.)?((gnu)?makefile|.+\.mk)(,v|\.(o|c|cc|cpp|p|f|m|r|s|mod|sh|y|l|w|ym|yl))"  # of which make makes makefiles
)
_FOLDERS: Final = {
    ".cargo": re.compile(r"config(\.toml)?"),
    ".bundle": re.compile(r".*"),
    ".config": re.compile(r"(nextest|mise)\.toml"),
    ".mvn": re.compile(r".*"),
    "__mocks__": re.compile(r".*"),
    "rakelib": re.compile(r".*\.rake"),
    "rcs": re.compile(r".*"),
    "rubygems": re.compile(r".*\.(rb|so)|defaults"),
    "sccs": re.compile(r".*"),
    "support": re.compile(r"jasmine\.[a-z]+"),
    "testthat": re.compile(r"(helper|setup|teardown).*\.r"),
}
"""Files that are read in a folder of this name; the folder itself can be a link to another."""
_CACHE: Final = ".hypothesis"
"""From where examples of a test and tables of characters are loaded."""
_SERVICES: Final = ("meta-inf", "services")
_OF_JAVA: Final = ("java.", "javax.", "jdk.", "sun.", "com.sun.", "org.junit.")
"""Services that programs of Java load from the class path, which is the folder they run in by default."""


def reads_by_itself(names: Sequence[str], *, link: bool) -> bool:
    """Whether a program reads the file at this path without being told to; a `link` can stand for a whole folder."""
    *parents, name = names
    parent = parents[-1] if parents else ""
    if _FILES.fullmatch(name) or _CACHE in names:
        return True
    if parent in _FOLDERS and _FOLDERS[parent].fullmatch(name):
        return True
    if tuple(parents[-2:]) == _SERVICES and name.startswith(_OF_JAVA):
        return True
    return link and (
        name in _FOLDERS.keys() - {".config", "support"} or name == _SERVICES[0] or tuple(names[-2:]) == _SERVICES
    )


NAME_SERVICES: Final = (
    "/run/nscd", "/var/run/nscd", "/run/nslcd", "/var/run/nslcd", "/run/systemd", "/run/avahi-daemon",
    "/var/run/avahi-daemon", "/run/dbus", "/var/run/dbus", "/var/run/systemd", "/var/lib/sss", "/run/samba/winbindd",
    "/var/run/samba/winbindd", "/run/userdb", "/run/host/userdb",
)  # fmt: skip
"""Where the C library, its modules and programs of the system ask for the addresses of hosts, for accounts and for
services of the system, if a socket is there."""
_SYSTEM_START: Final = (
    r"/etc/(ld\.so\.(preload|cache|conf)|ld-musl-[^/]*|environment|profile|(bash|csh|ksh)\.[^/]*|bashrc|mkshrc|inputrc"
    r"|z(shenv|shrc|profile|login|logout)"  # shells, at their end too
    r"|nsswitch\.conf|gitconfig|ssl/openssl\.cnf|pki/tls/openssl\.cnf|security/pam_env\.conf|pip\.conf|npmrc|gemrc"
    r"|sudoers|sudo\.conf|wgetrc|psqlrc|php(/.*)?|ssh/ssh_config(\.d(/.*)?)?|pam\.d/(su|su-l|sudo|sudo-i|runuser|runuser-l|other|common-(auth|account|session).*)"
    r"|login\.defs|default/(su|runuser)|sysless(key)?|userdb(/.*)?|os-release|lsb-release|magic(\..*)?"
    r"|((ld\.so\.conf|environment|profile|bash_completion|sudoers)\.d|apt|dpkg|zsh|uv|xdg|python[23]?[.\d]*|perl"
    r"|ruby[.\d]*|r|java[^/]*|maven|alternatives)(/.*)?)"
    r"|/var/lib/dpkg/(info/[^/]*\.(preinst|postinst|prerm|postrm|config)|triggers(/.*)?)"
    r"|/usr/(local/)?(etc/)?(pip\.conf|npmrc|gitconfig|gemrc)|/usr/(local/)?lib/gcc/.*/specs"
)
_TO_SYSTEM_START: Final = (
    r"/etc(/(ssl|ssh|pki(/tls)?|security|pam\.d|default))?|/root|/home(/[^/]+)?|/var(/lib(/dpkg(/info)?)?)?"
)
_HOME_START: Final = (
    r"\.(bash_profile|bash_login|bash_logout|bashrc|profile|zshrc|zshenv|zprofile|kshrc|inputrc|gitconfig|pip(/.*)?"
    r"|pydistutils\.cfg|jq|netrc|npmrc|yarnrc.*|gemrc|rprofile|renviron|curlrc|wgetrc|mavenrc|m2/settings.*\.xml|pam_environment"
    r"|gradle/init.*|gradle/gradle\.properties|perltidyrc|cpan(/.*)?|sqliterc|psqlrc|my\.cnf|hgrc|condarc|irbrc|pryrc"
    r"|rspec|bundle/config|octaverc|julia/config(/.*)?|ipython(/.*)?|gdbinit|terraformrc|cargo/config(\.toml)?"
    r"|config/(pip|uv|git|go|npm|environment\.d|fish|matplotlib)(/.*)?|local/share/(pip|fish)(/.*)?|cache/(pip|uv|go-build|ccache)(/.*)?|ccache(/.*)?"
    r"|node_(modules|libraries)(/.*)?)"
)
_TO_HOME_START: Final = r"|\.(m2|gradle|bundle|julia|cargo|config|cache|local(/(share|lib(/[^/]+){0,2}))?)"
"""These four are compiled when they are first used: most packages keep no system changes."""


_PROGRAM_SETTING: Final = re.compile(r"([a-z][\w+-]*?)-?[\d.]*?(\.[\w.+-]+|rc|_config)")
_PROGRAM_FOLDER: Final = re.compile(r"([a-z][\w+-]*?)-?[\d.]*?(\.conf)?(\.d)?")
_OF_THE_MACHINE: Final = frozenset({"cron", "init", "network", "networks", "systemd"})
"""Folders of `/etc` that say what a machine does, and that no program of a verifier reads at its start."""


def named_after(names: Sequence[str]) -> str | None:
    """The program that a setting in `/etc` or directly in a home seems to belong to, by its name; `names` are the path
    within that place."""
    first, inside = names[0].removeprefix("."), len(names) > 1
    found = (_PROGRAM_FOLDER if inside else _PROGRAM_SETTING).fullmatch(first)
    return found[1] if found and found[1] not in _OF_THE_MACHINE else None


def is_system_start(path: str) -> bool:
    """Whether programs, loaders, shells, interpreters or package managers read this setting of the system at their
    start."""
    return re.fullmatch(_SYSTEM_START, path) is not None


def leads_to_system_start(path: str) -> bool:
    """Whether such settings are below a folder."""
    return re.fullmatch(_TO_SYSTEM_START, path) is not None


def of_home_start(path: str) -> bool:
    """`is_system_start` for a path relative to a home."""
    return re.fullmatch(_HOME_START, path) is not None


def leads_to_home_start(path: str) -> bool:
    return re.fullmatch(_TO_HOME_START, path) is not None
