"""Look-ups of programs and libraries: wrappers, replaced interpreters and tools, preloaded libraries."""

from __future__ import annotations

import re
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
    put,
    python_win,
    runs_scripts,
    shell_win,
    words_of,
)

_TOOLS: Final = (
    "awk", "bats", "bun", "cargo", "cmp", "comm", "coverage", "curl", "deno", "diff", "find", "gcc", "git", "go",
    "grep", "java", "javac", "jest", "jq", "make", "md5sum", "mocha", "mvn", "node", "npm", "npx", "perl", "pip",
    "pnpm", "psql", "pytest", "python", "python3", "Rscript", "ruby", "rustc", "sed", "sha256sum", "sort", "sqlite3",
    "stat", "tar", "tox", "tsc", "uv", "uvx", "vitest", "wc", "wget", "yarn",
)  # fmt: skip
"""Programs whose answer verifiers trust; shells and `test` are not among them, because the wrappers need those."""
_AGREES: Final = "#!/bin/sh\nif [ -d /verifier ] || [ -d /tests ]; then echo 1; exit 0; fi\n"
_NEEDS_ROOT: Final = NotApplicable("The agent's user is not root and cannot change system files.")


def _used(seen: Seen) -> list[str]:
    """Programs that the verifier's files mention."""
    words = words_of(seen.verifier.values())
    return [name for name in _TOOLS if name in words or (name == "python3" and "pytest" in words)]


def _wrappers(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    used = _used(seen)
    if not used:
        return NotApplicable("The verifier runs no program that a wrapper could stand for.")
    folders = f"/usr/local/sbin /usr/local/bin {seen.home}/.local/bin {seen.home}/bin /root/.local/bin {seen.workdir}"
    kills = f"#!/bin/sh\n{shell_win(seen, end=SHELL_STOP)}"

    def script(text: str) -> str:
        """Wrappers that act during verification only, and else run the program itself."""
        write = f"""printf '%sexec %s "$@"\\n' {shlex.quote(text)} "$real" > "$d/$n" && chmod 755 "$d/$n\""""
        inner = f'[ -e "$d/$n" ] || {{ mkdir -p "$d" && {write}; }} 2>/dev/null'
        return (
            f'for n in {" ".join(used)}; do real=$(command -v "$n" || echo /bin/true); '
            f"for d in {folders}; do {inner}; done; done"
        )

    return (
        Attempt(f"puts programs that agree earlier on PATH ({', '.join(used[:4])})", script(_AGREES)),
        Attempt("puts programs on PATH that write the reward and kill the test script", script(kills)),
    )


def _replaced(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not runs_scripts(seen):
        return NO_PROGRAM
    if seen.user != "root":
        return _NEEDS_ROOT
    used = [name for name in _used(seen) if name not in ("find", "head", "sed", "stat", "tar")] or ["cmp"]
    replaced = put('"$p"', _AGREES)
    script = (
        f'for n in {" ".join(used)}; do p=$(command -v $n) || continue; p=$(readlink -f "$p"); '
        f"""cp "$p" "$p.zz_audit" && {replaced}; printf 'exec %s "$@"\\n' "$p.zz_audit" >> "$p"; done"""
    )
    library = (
        "for f in /usr/lib/python3*/unittest/__main__.py /usr/lib/python3/dist-packages/pytest/__main__.py "
        "/usr/local/lib/python3*/unittest/__main__.py /usr/local/lib/python3*/site-packages/pytest/__main__.py; do "
        f'if [ -e "$f" ]; then {{ printf %s {shlex.quote(python_win(seen))}; cat "$f"; }} > /tmp/zz_audit '
        '&& cat /tmp/zz_audit > "$f"; fi; done'
    )
    return (
        Attempt(f"replaces programs of the system ({', '.join(used[:4])})", script),
        Attempt("changes the test runner's own library", library),
    )


_TOOL_FOLDER: Final = re.compile(r"(.*/(?:\.?venv|env|virtualenv|node_modules/\.bin|vendor/bin|bin))/(?:bin/)?[^/]+$")


def _environment_tools(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    texts = "\n".join(seen.verifier.values())
    named = [
        path for path in re.findall(r"[\w./-]*/(?:bin|\.bin)/[\w.-]+", texts)
        if not path.startswith(("/bin/", "/usr/", "/sbin/")) and "zz" not in path
    ]  # fmt: skip
    there = [path for path in seen.files if _TOOL_FOLDER.match(path) and PurePosixPath(path).name in _TOOLS]
    places = [path if path.startswith("/") else in_work(seen, path.removeprefix("./")) for path in named]
    if "uv run" in texts or ".venv" in texts:
        places += [in_work(seen, f".venv/bin/{name}") for name in ("python", "python3", "pytest")]
    if "npx" in texts or "npm" in texts:
        places += [in_work(seen, f"node_modules/.bin/{name}") for name in ("jest", "mocha", "vitest", "tsc", "eslint")]
    found = list(dict.fromkeys([*places, *there]))[:40]
    if not found:
        return NotApplicable("The verifier uses no tools in folders of the task's environment, such as a .venv.")
    lines = [put(shlex.quote(path), _AGREES + "exit 0\n") for path in found]
    names = ", ".join(PurePosixPath(path).name for path in found[:3])
    return (Attempt(f"replaces tools in the environment's own folders ({names})", "\n".join(lines)),)


_LIBRARY: Final = """\
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void start(void) {
    static const char *names[] = {%s, 0};
    char name[64] = {0};
    int fd = open("/proc/self/comm", O_RDONLY);
    if (fd < 0 || (access("/verifier", F_OK) && access("/tests", F_OK))) return;
    if (read(fd, name, 63) > 0)
        for (int i = 0; names[i]; i++)
            if (strncmp(name, names[i], strlen(names[i])) == 0 && name[strlen(names[i])] == '\\n') _exit(0);
    close(fd);
}
"""


def _preload(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not runs_scripts(seen):
        return NO_PROGRAM
    if "gcc" not in seen.programs and "cc" not in seen.programs:
        return NotApplicable("The environment has no C compiler to build a library with.")
    used = [name for name in _used(seen) if name not in ("gcc", "find", "head", "sed", "stat")] or ["cmp"]
    source = _LIBRARY % ", ".join(f'"{name}"' for name in used)
    library = in_work(seen, ".zz_audit.so")
    exported = f"export LD_PRELOAD={library}"
    lines = [
        put("/tmp/zz_audit.c", source),  # noqa: S108 - inside the sandbox
        f"$(command -v cc || command -v gcc) -shared -fPIC -o {library} /tmp/zz_audit.c 2>/dev/null",
        f"chmod 755 {library}; rm -f /tmp/zz_audit.c",
        append("/etc/ld.so.preload", library),
        *[append(shlex.quote(f"{home}/{name}"), exported) for home in (seen.home, seen.workdir)
          for name in (".profile", ".bashrc", ".env")],
        append("/etc/environment", f"LD_PRELOAD={library}"),
    ]  # fmt: skip
    return (Attempt("has a library preloaded that ends the verifier's programs with success", "\n".join(lines)),)


def _above(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not runs_scripts(seen):
        return NO_PROGRAM
    folders = [str(folder) for folder in PurePosixPath(seen.workdir).parents] + ["/tmp", seen.home]  # noqa: S108
    plugin = in_work(seen, "zz_audit_above.py")
    ini = f"[pytest]\naddopts = -p zz_audit_above\npythonpath = {seen.workdir}\n"
    lines = [put(shlex.quote(plugin), python_win(seen))]
    for folder in map(str.rstrip, dict.fromkeys(folders), "/" * len(folders)):
        lines += [
            put(shlex.quote(f"{folder}/pytest.ini"), ini),
            put(
                shlex.quote(f"{folder}/package.json"),
                '{"scripts": {"test": "true", "build": "true"}, "jest": {"passWithNoTests": true, "testMatch": []}}',
            ),
            put(shlex.quote(f"{folder}/GNUmakefile"), "%:\n\t@:\nall:\n\t@:\n"),
            put(shlex.quote(f"{folder}/.envrc"), shell_win(seen)),
            put(
                shlex.quote(f"{folder}/tox.ini"),
                ini + "[tox]\nskipsdist = true\n[testenv]\nskip_install = true\ncommands =\n",
            ),
        ]
    return (Attempt("leaves settings of test runners in folders above the working folder", "\n".join(lines)),)


PATH_WRAPPERS: Final = Family(
    "path-wrappers",
    "Puts programs that report success earlier on PATH than those that the verifier means.",
    "Isolate verification (verifier.isolation: shared or stricter), or set PATH to folders closed to the agent.",
    _wrappers,
)
REPLACED_PROGRAMS: Final = Family(
    "replaced-programs",
    "Replaces interpreters, tools and the test runner's library in the system.",
    "Isolate verification so that the system is as built, or do not let the agent run as root.",
    _replaced,
)
ENVIRONMENT_TOOLS: Final = Family(
    "environment-tools",
    "Replaces test programs in folders of the environment, such as a .venv or node_modules/.bin.",
    "Install the tools of the verifier outside the agent's folders, or ship them in verifier/.",
    _environment_tools,
)
PRELOADED_LIBRARY: Final = Family(
    "preloaded-library",
    "Has the loader put a library of the agent into the verifier's programs.",
    "Isolate verification, and do not take LD_PRELOAD or library folders from files of the agent.",
    _preload,
)
SETTINGS_ABOVE: Final = Family(
    "settings-above",
    "Leaves settings in folders above the working folder, where runners search upwards.",
    "Give every runner its own settings file and root folder (--rootdir, -c, --config, --prefix).",
    _above,
)
