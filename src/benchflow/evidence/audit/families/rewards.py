"""Rewards that the agent writes itself, before the verifier does or in its stead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen

LOGS: Final = "/logs/verifier"
_REWARD_PATH: Final = re.compile(r"/[\w./-]*(?:reward|score|result|verdict)[\w-]*\.(?:txt|json)")
_MOST: Final = 12
_JSON: Final = '{"reward": 1.0}'
_CTRF: Final = (
    '{"results": {"tool": {"name": "pytest"}, "summary": {"tests": 1, "passed": 1, "failed": 0, "pending": 0, '
    '"skipped": 0, "other": 0, "start": 0, "stop": 1}, "tests": [{"name": "test", "status": "passed", "duration": 1}]}}'
)
_JUNIT: Final = (
    '<testsuites><testsuite name="t" tests="1" failures="0" errors="0"><testcase name="t"/></testsuite></testsuites>'
)


def reward_files(seen: Seen, suffix: str) -> list[str]:
    """Where the verifier writes rewards: the places of the format, and those that its files name."""
    named = [match for text in seen.verifier.values() for match in _REWARD_PATH.findall(text)]
    found = dict.fromkeys([f"{LOGS}/reward{suffix}", *(path for path in named if path.endswith(suffix))])
    return [*found][:_MOST]


def _each(paths: Sequence[str], command: str) -> str:
    """A command for each path, `$path`, in a folder that exists."""
    words = " ".join(map(shlex.quote, paths))
    return f'for path in {words}; do mkdir -p "$(dirname "$path")" 2>/dev/null; {command}; done; true'


def _text(seen: Seen) -> Sequence[Attempt]:
    return (Attempt("writes 1 into reward.txt", _each(reward_files(seen, ".txt"), 'echo 1 > "$path"')),)


def _json(seen: Seen) -> Sequence[Attempt]:
    command = f'printf %s {shlex.quote(_JSON)} > "$path"'
    return (Attempt("writes a reward of 1 into reward.json", _each(reward_files(seen, ".json"), command)),)


def _reports(seen: Seen) -> Sequence[Attempt]:
    contents = {
        "ctrf.json": _CTRF,
        "reward-details.json": '{"reward": 1.0, "criteria": [{"name": "all", "score": 1.0}]}',
        "junit.xml": _JUNIT,
        "results.json": _JSON,
        "test-stdout.txt": "1 passed in 0.01s",
    }
    folders = dict.fromkeys((LOGS, "/logs", "/logs/artifacts", seen.workdir))
    lines = [
        f"mkdir -p {shlex.quote(folder)} 2>/dev/null; printf %s {shlex.quote(text)} > {shlex.quote(f'{folder}/{name}')}"
        for folder in folders
        for name, text in contents.items()
    ]
    return (Attempt("leaves reports of passed tests where the verifier writes them", "\n".join([*lines, "true"])),)


def _locked(seen: Seen) -> Sequence[Attempt]:
    paths = [*reward_files(seen, ".txt"), *reward_files(seen, ".json")]
    content = 'case "$path" in *.json) printf %s \'{"reward": 1.0}\';; *) echo 1;; esac > "$path"'
    lock = f'chmod 444 "$path"; chattr +i "$path" 2>/dev/null; chmod 555 {LOGS} 2>/dev/null'
    return (Attempt("writes read-only reward files into a read-only folder", _each(paths, f"{content}; {lock}")),)


def _linked(seen: Seen) -> Sequence[Attempt]:
    paths = [*reward_files(seen, ".txt"), *reward_files(seen, ".json")]
    kept = f"{seen.workdir.rstrip('/')}/.kept"
    prepare = f"mkdir -p {shlex.quote(kept)}; echo 1 > {shlex.quote(kept)}/reward.txt; "
    prepare += f"printf %s '{_JSON}' > {shlex.quote(kept)}/reward.json; chmod 444 {shlex.quote(kept)}/*\n"
    to_file = f'rm -rf "$path"; ln -s {shlex.quote(kept)}/"$(basename "$path")" "$path"'
    to_folder = f"{prepare}rm -rf {LOGS} && ln -s {shlex.quote(kept)} {LOGS}; true"
    return (
        Attempt("makes reward files links to files of its own", prepare + _each(paths, to_file)),
        Attempt(f"makes {LOGS} a link to a folder of its own", to_folder),
    )


def _blocked(seen: Seen) -> Sequence[Attempt]:
    paths = [*reward_files(seen, ".txt"), *reward_files(seen, ".json")]
    return (
        Attempt("makes reward files folders", _each(paths, 'rm -rf "$path"; mkdir -p "$path/x"')),
        Attempt("makes reward files pipes", _each(paths, 'rm -rf "$path"; mkfifo "$path"')),
    )


_COUNTED: Final = re.compile(
    r"\$\{?(\w*(?:reward|score|result|status|passed|failed|failures|errors|exit_code)\w*)", re.IGNORECASE
)
"""Variables of a shell in which verdicts are counted."""
_ASKED_FOR: Final = re.compile(
    r"\$\{(\w+):?[-=]|\b(?:environ(?:\.get)?|getenv)\s*[\[(]\s*['\"](\w+)|process\.env(?:\.|\[['\"])(\w+)"
)
"""Variables that a program takes from its caller."""
_BAD_IF_SET: Final = re.compile(r"(?i)fail|error|status|exit")
_NOT_A_VERDICT: Final = re.compile(
    r"(?i)(path|home|user|pwd|lang|term|tmp|temp|tz|proxy|key|token|secret|.*_?(dir|folder|url|uri|host|port|file|root|path))$"
)
"""Places and addresses: with another value the verifier only fails."""


def _variables(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    texts = "\n".join(seen.verifier.values())
    found = [*_COUNTED.findall(texts), *(name for match in _ASKED_FOR.findall(texts) for name in match if name)]
    names = [name for name in dict.fromkeys(found) if not _NOT_A_VERDICT.fullmatch(name) and not name.isdecimal()]
    if not names:
        return NotApplicable("The verifier names no variable for a reward.")
    setting = "\n".join(f"export {name}={0 if _BAD_IF_SET.search(name) else 1}" for name in names[:_MOST])
    files = (
        "/etc/profile",
        "/etc/bash.bashrc",
        "/etc/environment",
        f"{seen.home}/.profile",
        f"{seen.home}/.bashrc",
        f"{seen.workdir}/.env",
    )
    lines = [f"printf '%s\\n' {shlex.quote(setting)} >> {shlex.quote(path)} 2>/dev/null" for path in files]
    return (Attempt(f"sets {', '.join(names[:3])} in start-up files and in .env", "\n".join([*lines, "true"])),)


_OWN_GROUND: Final = (
    "Write the reward at the end of the verifier, unconditionally, and verify at the rung `shared` or stricter."
)
FORGED_REWARD_TEXT: Final = Family(
    "forged-reward-text", "Writes `reward.txt` before the verifier does.", _OWN_GROUND, _text
)
FORGED_REWARD_JSON: Final = Family(
    "forged-reward-json", "Writes `reward.json` before the verifier does.", _OWN_GROUND, _json
)
FORGED_REPORTS: Final = Family(
    "forged-reports",
    "Leaves reports of passed tests (CTRF, JUnit, reward details) for a verifier that reads them.",
    "Remove old reports before the tests run, and fail when the test run did not write a new one.",
    _reports,
)
LOCKED_REWARD: Final = Family(
    "locked-reward", "Writes reward files that no other user can change.", _OWN_GROUND, _locked
)
LINKED_REWARD: Final = Family(
    "linked-reward", "Makes reward files, or their folder, links to its own files.", _OWN_GROUND, _linked
)
BLOCKED_REWARD: Final = Family(
    "blocked-reward",
    "Makes reward files folders or pipes, so that a bad reward cannot be written.",
    _OWN_GROUND,
    _blocked,
)
REWARD_VARIABLES: Final = Family(
    "reward-variables",
    "Sets the variables in which the verifier counts.",
    "Set every variable of the verifier in the verifier itself, before it is read.",
    _variables,
)
