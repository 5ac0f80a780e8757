"""What programs of verifiers look up without being told to, and how each look-up is settled.

`LOOKUPS` is the table that `docs/trust.md` shows and that the exploit suite generates its cases from;
`pinned_variables` are the environment variables of every verifier command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from benchflow.sandbox.protocol import SandboxSpec

Settled = Literal["variable", "hook", "as-built", "sanitised", "named"]
"""How a look-up is settled.

`variable`: an environment variable turns it off or directs it. `hook`: the interpreter hook in the ground folder knows
what is as built. `as-built`: the files it finds are those of the environment. `sanitised`: settings are reduced to an
allow-list. `named`: it happens only where the verifier names a file, which is the agent's by right.
"""


@dataclass(frozen=True, slots=True)
class Lookup:
    """One thing that a program looks up implicitly."""

    program: str
    finds: str
    """What it would use, in a sentence."""
    settled: Settled
    how: str
    """The variable, the rule or the part of the hook."""


LOOKUPS: Final[tuple[Lookup, ...]] = (
    Lookup(
        "python",
        "Modules in the current folder, the script's folder and `PYTHONPATH`.",
        "hook",
        "A module that the agent added, or that came out of its archive, is found only where the environment has none "
        "of that name. The hook starts in the standard library, whatever the options and variables.",
    ),
    Lookup(
        "python",
        "Modules that it imports before the hook, from `PYTHONPATH`.",
        "as-built",
        "`encodings`, and `codecs` before Python 3.11: withheld by name.",
    ),
    Lookup(
        "python",
        "Modules that a library imports if they exist, by a statement or by a name in its text.",
        "hook",
        "One that only the agent has is not found, unless the verifier names it or has imported code of the agent.",
    ),
    Lookup(
        "coverage",
        "`.coveragerc`, `setup.cfg`, `tox.ini`, `pyproject.toml` in the current folder, which name plugins.",
        "hook",
        "As settings of pytest.",
    ),
    Lookup("hypothesis", "Examples and tables in `.hypothesis`.", "as-built", "Withheld by name."),
    Lookup(
        "python",
        "`sitecustomize`, `usercustomize` and `.pth` files at its start.",
        "as-built",
        "Withheld by name; site folders are as built. In a virtual environment that the verifier makes, `.pth` files "
        "and modules that the agent left there before do not count.",
    ),
    Lookup("python", "Bytecode in `__pycache__`.", "as-built", "Withheld by name."),
    Lookup(
        "python",
        "Bytecode that the verifier unpacks from an archive of the agent, beside a module or test of its own.",
        "hook",
        "Not read: what is not installed and has new bytecode is compiled anew.",
    ),
    Lookup(
        "python",
        "Entry points in `*.dist-info` and `*.egg-info` on the module path.",
        "hook",
        "Distributions that the agent added have none where all are searched.",
    ),
    Lookup(
        "python",
        "`pyvenv.cfg` above the interpreter, the user's site folder.",
        "as-built",
        "Folders of tools, system folders and settings of homes are as built.",
    ),
    Lookup("pytest", "Plugins by entry point.", "hook", "As entry points of any program."),
    Lookup(
        "pytest",
        "`pytest.ini`, `pytest.toml`, `pyproject.toml`, `tox.ini`, `setup.cfg` in the tests' folder and above it.",
        "hook",
        "Settings that the agent added or changed act as built, or not at all. One that appears during verification "
        "counts if its text is that of the environment's or the verifier's files, or is written out in one of these.",
    ),
    Lookup("pytest", "A file of settings given by `-c`.", "named", "The verifier names it."),
    Lookup(
        "pytest",
        "`conftest.py` in the tests' folder, above and below it.",
        "hook",
        "One that the agent added counts as empty; changed ones are as built.",
    ),
    Lookup(
        "pytest",
        "Tests in the folders that it searches.",
        "hook",
        "One that the agent left, also as a copy or with other rights, does not run among tests that the verifier put "
        "there, unless the verifier names its file.",
    ),
    Lookup(
        "pytest",
        "`__init__.py` of the folders around a test.",
        "hook",
        "A folder is a package only if its `__init__.py` is not the agent's.",
    ),
    Lookup(
        "tox",
        "`tox.ini`, `setup.cfg`, `pyproject.toml` in the current folder and above it.",
        "hook",
        "As settings of pytest; a file given by `-c` is used as it is.",
    ),
    Lookup(
        "uv",
        "`uv.toml`, `.python-version` and settings in `pyproject.toml`, in the current folder and above it.",
        "variable",
        "`UV_NO_CONFIG`, where the agent added one, and where neither the environment nor the verifier has one. "
        "A `pyproject.toml` that does not contain `uv` is none.",
    ),
    Lookup(
        "uv",
        "The project and the `.venv` in the current folder.",
        "variable",
        "`UV_PROJECT` or `UV_PROJECT_ENVIRONMENT` in the ground folder, where the agent added one. If the verifier "
        "runs `uv init`, a `.venv` without a project is withheld, unless the task mentions it.",
    ),
    Lookup(
        "pip",
        "`pip.conf` of the system, of the user and of the virtual environment.",
        "as-built",
        "System folders, tools and settings of homes are as built.",
    ),
    Lookup("unittest", "Modules beside the tests, and the current folder.", "hook", "As modules of python."),
    Lookup("unittest", "Tests in the folders that it searches.", "hook", "As tests of pytest."),
    Lookup(
        "unittest",
        "`__init__.py` of the folders that it searches for tests.",
        "hook",
        "One of the agent's does not run on the way to the verifier's tests.",
    ),
    Lookup(
        "node",
        "Packages in `node_modules` beside the script and above it, and by `name` in the `package.json` above it.",
        "hook",
        "A program in the place of `node` loads a hook, whatever the variables: what other files than the agent's "
        "require is found in its packages last.",
    ),
    Lookup(
        "node",
        "The `package.json` of the current folder, when `--require` loads the hook.",
        "variable",
        "It is required by a name that nobody can know before; by `--import`, if one of the agent's cannot be parsed.",
    ),
    Lookup(
        "node",
        "Packages that ES modules import, from `node_modules` above them.",
        "hook",
        "As packages that are required, from Node 18.19.",
    ),
    Lookup(
        "node",
        "Packages and a `package.json` that the verifier unpacks from an archive of the agent.",
        "hook",
        "What came there while the verifier works counts as the agent's, unless it is a copy of a verifier's file.",
    ),
    Lookup(
        "node",
        "`~/.node_modules`, `~/.node_libraries`, folders of `NODE_PATH`.",
        "as-built",
        "Settings of homes and folders of look-ups are as built.",
    ),
    Lookup("npm", "`.npmrc`, `.yarnrc`, `.pnpmfile.cjs` in the folder and the home.", "as-built", "Withheld by name."),
    Lookup(
        "npm",
        "Programs in `node_modules/.bin` before those of the system.",
        "as-built",
        "Withheld if the environment has a program of that name.",
    ),
    Lookup(
        "node",
        "Settings of runners: `jest.config.*`, `vitest.config.*`, `.mocharc.*` and their like.",
        "as-built",
        "Withheld by name.",
    ),
    Lookup(
        "node",
        "Keys of runners (`jest`, `mocha` and their like) in the `package.json` of the folder.",
        "hook",
        "An installed program reads only keys that npm defines in one of the agent's; other keys are as built.",
    ),
    Lookup(
        "node",
        "`scripts` in the `package.json` of the folder; `vite.config.*` and `babel.config.*`.",
        "named",
        "The verifier runs the agent's project; one with tests of its own gives the runner its own `--config`.",
    ),
    Lookup(
        "ruby",
        "Gems of a newer version, and `site_ruby`, before the standard library.",
        "as-built",
        "System folders and homes are as built; where system changes are kept, a gem or library that the environment "
        "has is withheld.",
    ),
    Lookup(
        "ruby",
        "Libraries in folders that `-I`, `RUBYLIB` or a test adds to the load path.",
        "hook",
        "A library that the agent added is found only where the environment has none of that name.",
    ),
    Lookup(
        "ruby",
        "Libraries on the load path that the verifier unpacks from an archive of the agent.",
        "hook",
        "Found only where the environment has none of that name, except in folders of gems.",
    ),
    Lookup(
        "ruby",
        "Plugins of RubyGems and minitest on the load path.",
        "hook",
        "Those that the agent added are not found.",
    ),
    Lookup(
        "ruby",
        "`rubygems`, `rbconfig` and `rubygems/defaults` at its start.",
        "as-built",
        "Withheld by name; RubyGems starts the hook as soon as these are loaded.",
    ),
    Lookup(
        "ruby",
        "`.bundle/config`, `.rspec`, `.gemrc`, `.irbrc`, `rakelib/*.rake`.",
        "as-built",
        "Withheld by name.",
    ),
    Lookup(
        "perl",
        "Modules in folders that `-I`, `PERL5LIB`, `prove -l` or a test adds to the path.",
        "hook",
        "One that the agent added, or that came out of its archive, is found only where the environment has none of "
        "that name. `PERL5OPT` loads the hook, except with `-T`.",
    ),
    Lookup(
        "perl",
        "Modules in `/etc/perl` and `/usr/local` before its own.",
        "as-built",
        "System folders are as built; where system changes are kept, a module that the environment has is withheld.",
    ),
    Lookup("perl", "`.proverc` in the folder and the home.", "as-built", "Withheld by name."),
    Lookup("ctest", "`CTestCustom.cmake` in the folder of a build.", "as-built", "Withheld by name."),
    Lookup("R", "`.Rprofile`, `.Renviron`, `.RData` in the folder and the home.", "as-built", "Withheld by name."),
    Lookup(
        "R",
        "Packages of the site library, `Rprofile.site`, `Renviron.site`.",
        "as-built",
        "System folders are as built; where system changes are kept, a package that the environment has is withheld.",
    ),
    Lookup(
        "java",
        "Annotation processors and other services of `META-INF/services` on the class path, by default the folder.",
        "as-built",
        "Files of services that the JDK and JUnit load by themselves are withheld.",
    ),
    Lookup("java", "`.mvn`, `.jvmopts`, `junit-platform.properties`.", "as-built", "Withheld by name."),
    Lookup("java", "Classes of the folder by name.", "named", "The verifier names the class."),
    Lookup("go", "`go.work` in the folder and above it.", "as-built", "Withheld by name."),
    Lookup(
        "go",
        "Modules in `pkg/mod`, which it compares with their checksums only when it unpacks them.",
        "as-built",
        "Modules are as built. Of what the agent downloaded the archives stay, which Go unpacks and compares again.",
    ),
    Lookup("go", "Variables in `~/.config/go/env`.", "as-built", "Settings of homes are as built."),
    Lookup(
        "cargo",
        "`.cargo/config.toml` and `rust-toolchain` in the folder, above it and in the home.",
        "as-built",
        "Withheld by name, the folder also as a link.",
    ),
    Lookup(
        "make",
        "`GNUmakefile` and `makefile` before `Makefile`.",
        "as-built",
        "Withheld unless the task mentions a makefile of that name.",
    ),
    Lookup(
        "make",
        "A file with the name of a target, which is then up to date.",
        "variable",
        "`MAKEFILES` declares targets of the verifier's and the environment's makefiles as `.PHONY`, unless their "
        "recipe makes the file.",
    ),
    Lookup(
        "make",
        "A target that a recipe of the verifier's makefile makes, and which is newer than what it is made of.",
        "as-built",
        "Withheld, unless the task mentions the file. Files of the agent are never from the future, so that what the "
        "verifier copies is newer.",
    ),
    Lookup(
        "make",
        "`Makefile.sh`, `Makefile.o`, `RCS/` and their like, from which it makes makefiles again.",
        "as-built",
        "Withheld by name.",
    ),
    Lookup(
        "git",
        "Programs and redirections in the settings of a repository, its includes and work trees.",
        "sanitised",
        "Reduced to an allow-list of keys, and what the environment was built with.",
    ),
    Lookup(
        "git",
        "Hooks and file monitors.",
        "variable",
        "`GIT_CONFIG_COUNT` sets `core.hooksPath` and `core.fsmonitor` for every command.",
    ),
    Lookup(
        "git",
        "Hooks of a repository, also where a file, a link or a common folder leads to it.",
        "as-built",
        "Those that the agent added are removed from the verifier's copy, so that none runs without variables either.",
    ),
    Lookup("git", "Settings of the user and the system.", "as-built", "System folders and homes are as built."),
    Lookup(
        "libraries",
        "Files in a package or standard library of Go, Ruby, Node, R, Rust or Python, and extensions of Java.",
        "as-built",
        "Where system changes are kept, nothing is added to those that the environment was built with.",
    ),
    Lookup(
        "libraries",
        "What programs look for beside themselves and their libraries before they take their own: `python3.11._pth`, "
        "`python311.zip` and a library below `bin` of Python, `*.pmc` and `*.bs` of Perl, files in the libraries of "
        "Ruby, `specs`, `real-ld` and `*.gch` of compilers, `glibc-hwcaps` of the loader.",
        "as-built",
        "Withheld by name where system changes are kept, `*.pmc` everywhere; of a folder of programs nothing but "
        "programs is kept.",
    ),
    Lookup(
        "libc",
        "Modules of name services (`libnss_*`), and rules and messages of languages (`/usr/lib/locale`, "
        "`/usr/share/locale`).",
        "as-built",
        "Where system changes are kept, none is added; those of languages are if the task speaks of locales.",
    ),
    Lookup(
        "gcc",
        "Headers in `/usr/local/include` and beside the compiler before those of the system.",
        "as-built",
        "Where system changes are kept, a header that the environment has is withheld.",
    ),
    Lookup(
        "any",
        "Its settings in `/etc` and in homes.",
        "as-built",
        "As built; where system changes are kept, those in homes and those named after a program of the environment, "
        "unless the task mentions them.",
    ),
    Lookup(
        "any",
        "Any path of the system or a home that does not exist in the environment, and all files of a folder.",
        "as-built",
        "Where system changes are kept, the verifier's programs are watched on the environment as built. What they "
        "look for in vain there, or would list in a folder of software, is withheld, unless the task or the verifier "
        "names it or the oracle adds it.",
    ),
    Lookup(
        "any",
        "Its settings in `/etc` and `/opt` that exist in the environment, under whatever name.",
        "as-built",
        "Where system changes are kept, those that the watched programs look for by themselves stay as built, unless "
        "the task, the verifier or the oracle names them.",
    ),
    Lookup(
        "any",
        "A program of the agent before one that the verifier installs or that is outside the folders of the system.",
        "as-built",
        "Where system changes are kept, withheld if a program of that name ran from elsewhere while the verifier was "
        "watched.",
    ),
    Lookup(
        "libc",
        "Libraries in the folders of the loader's cache.",
        "as-built",
        "The cache is as built. Where system changes are kept, it is updated with the agent's libraries, if it still "
        "finds all of the environment's where they were.",
    ),
    Lookup(
        "cmake",
        "`CMakeCache.txt` in a build folder, which names compilers and other programs.",
        "as-built",
        "Withheld outside the working folder, unless the task mentions it.",
    ),
    Lookup(
        "any",
        "The shell and home of the verifier's user and of root in `/etc/passwd`.",
        "as-built",
        "These accounts are as built; others that the agent changes or adds are kept where system changes are.",
    ),
    Lookup("go", "Files of the package that is built.", "named", "The verifier names the folder."),
    Lookup("cargo", "`build.rs` and targets of the package that is built.", "named", "The verifier names the package."),
    Lookup(
        "bash",
        "Programs and libraries in the current folder, by a relative entry of `PATH` or `LD_LIBRARY_PATH`.",
        "variable",
        "The working folder, folders above it and relative ones are last in `PATH`; libraries are in no relative one.",
    ),
    Lookup(
        "bash",
        "Profiles, files for the end of a shell, `BASH_ENV`, preloaded libraries, programs earlier on `PATH`.",
        "as-built",
        "System folders and homes are as built, and so is what such variables of the environment name.",
    ),
    Lookup(
        "any",
        "Programs and libraries of the environment outside the system: beside a folder `bin` of `PATH`, behind links "
        "of the system, installed in place (`pip install -e`), in `GEM_PATH` and its like.",
        "as-built",
        "As built outside the working folder, unless the task names them; folders that variables name also in it.",
    ),
    Lookup(
        "bash",
        "Names of files that begin with `-`, where a verifier writes `tar cf x *`.",
        "as-built",
        "Withheld unless the task mentions the name.",
    ),
    Lookup(
        "apt",
        "Hooks and sources in `/etc/apt` and `/etc/dpkg`, scripts and triggers of packages in `/var/lib/dpkg`.",
        "as-built",
        "Withheld by name at every rung; what is installed stays known.",
    ),
    Lookup(
        "libc",
        "Accounts, addresses and services behind sockets in `/run/nscd`, `/run/systemd`, `/run/dbus` and `/dev`.",
        "as-built",
        "Sockets are not forwarded there, and links on the way there are withheld.",
    ),
    Lookup(
        "libc",
        "The home of the verifier's user in `/etc/passwd`.",
        "variable",
        "`HOME` is that of the environment as built, and the settings in it are as built.",
    ),
)


OWNERS: Final = {"safe.directory": "*"}
"""Lets git work in folders that belong to the agent's user; test scripts expect to run as the user of the agent."""


def pinned_variables(plugins: Iterable[str] = ()) -> dict[str, str]:
    """Variables of every verifier command: they disable code in repositories and set the allowed plugins."""
    pinned = git_variables({**OWNERS, "core.fsmonitor": "false", "core.hooksPath": "/dev/null"})
    allowed = " ".join(f"-p {name}" for name in plugins)
    return pinned | ({"PYTEST_ADDOPTS": allowed} if allowed else {})


def git_variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Variables that give git these settings."""
    variables = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


HOOK: Final = "/run/verifier-ground/python"
"""Where the interpreter hook is in a box of a verifier."""
NODE_HOOK: Final = "/run/verifier-ground/node/lookups.cjs"
MAKE_HOOK: Final = "/run/verifier-ground/make/phony.mk"
RUBY_HOOK: Final = "/run/verifier-ground/ruby/lookups.rb"
PERL_HOOK: Final = "/run/verifier-ground/perl/lookups.pl"
_PERL_OPTION: Final = f'-M5;BEGIN{{require"{PERL_HOOK}"}}'
"""Loads a file by its path, before Perl loads a module by its name; `use 5` is true of every Perl."""


_REQUIRED: Final = re.compile(r"(?<!\S)(?:--require|-r)[= ](\S+)")
"""An option of Node that loads a module at its start."""
_LISTS: Final = ("PATH", "LD_LIBRARY_PATH", "PERL5LIB", "RUBYLIB")


def with_hook(
    variables: Mapping[str, str],
    spec: SandboxSpec,
    *,
    node_hook: str = NODE_HOOK,
    misleads_node: bool = False,
    phony: bool = False,
) -> dict[str, str]:
    """The variables of a command with the hooks of interpreters before the environment's own settings of them.

    `--require` works in every version of Node and leaves the start of programs as it is, but reads the `package.json`
    of the current folder. Where one of the agent's `misleads_node`, `--import` is used: it reads none, from Node 18.18.

    Lists of folders have none that depend on where a command runs, which can be a folder of the agent; such programs
    are found last.
    """
    image = spec.image.env if spec.image is not None else {}
    own = {**image, **spec.env, **variables}
    modules = ":".join(filter(None, [HOOK, own.get("PYTHONPATH", "")]))
    node = _node_variables(own.get("NODE_OPTIONS", ""), node_hook, misled=misleads_node)
    make = {"MAKEFILES": f"{MAKE_HOOK} {own.get('MAKEFILES', '')}".rstrip()} if phony else {}
    ruby = {"RUBYOPT": f"-r{RUBY_HOOK} {own.get('RUBYOPT', '')}".rstrip()}
    perl = {"PERL5OPT": f"{_PERL_OPTION} {own.get('PERL5OPT', '')}".rstrip()}
    lists = _settled_lists(own, spec.workdir)
    return {**variables, **lists, "PYTHONPATH": modules, **node, **ruby, **perl, **make}


def _node_variables(own: str, hook: str, *, misled: bool) -> dict[str, str]:
    if not misled:
        return {"NODE_OPTIONS": f"{node_option(hook, misled=False)} {own}".rstrip()}
    # Node would load the environment's own modules before the hook, which loads them instead.
    rest = " ".join(_REQUIRED.sub("", own).split())
    options = f"{node_option(hook, misled=True)} {rest}".rstrip()
    return {"NODE_OPTIONS": options, "VERIFIER_GROUND_REQUIRE": " ".join(_REQUIRED.findall(own))}


def node_option(hook: str, *, misled: bool) -> str:
    """The option by which Node loads its hook."""
    return f"--import=file://{NODE_HOOK}" if misled else f"--require={hook}"


def _settled_lists(variables: Mapping[str, str], workdir: str) -> dict[str, str]:
    """Lists of folders without those that depend on where a command runs; in `PATH` these are last, and so are the
    working folder and folders above it, in which a program of the agent would stand before one of the environment."""
    changed = {}
    for name in _LISTS:
        folders = variables[name].split(":") if variables.get(name) else []
        first = [
            folder for folder in folders if folder.startswith("/") and not (name == "PATH" and _holds(folder, workdir))
        ]
        if len(first) < len(folders):
            last = [folder or "." for folder in folders if folder not in first] if name == "PATH" else []
            changed[name] = ":".join([*first, *last])
    return changed


def _holds(folder: str, workdir: str) -> bool:
    return f"{workdir}/".startswith(f"{folder.rstrip('/')}/")
