"""Daemons: processes and jobs that outlive the agent and act when the verifier's files appear."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.planting import (
    NO_PROGRAM,
    PYTHON_STOP,
    SHELL_STOP,
    in_work,
    put,
    python_win,
    reward_file,
    runs_scripts,
    shell_win,
)

_SEC: Final = 30
"""How long a daemon stays: verification of most packages is over by then."""
_STEP: Final = re.compile(r"^(steps/[^/]+/)?")
_REMEDY: Final = "Let the agent's processes end before verification (verifier.isolation: shared or system)"


def daemon(seen: Seen, work: str) -> str:
    """A script that starts a process which outlives it and works again and again.

    It runs from a file, so that what it waits for does not stand in its own command line.
    """
    place = in_work(seen, ".zz_audit_daemon")
    loop = f"end=$(( $(date +%s) + {_SEC} )); while [ $(date +%s) -lt $end ]; do {work}; sleep 0.02; done\n"
    start = f"nohup setsid sh {place} >/dev/null 2>&1 </dev/null &\ndisown 2>/dev/null || :"
    return f"{put(place, loop)}\n{start}"


def _reward(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    path, text = reward_file(seen)
    work = f"[ ! -d /logs/verifier ] || printf %s {shlex.quote(text)} > {path}"
    return (Attempt("leaves a process that writes the reward file", daemon(seen, work)),)


def _tests(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not runs_scripts(seen):
        return NO_PROGRAM
    path, text = reward_file(seen)
    script = f"#!/bin/sh\nprintf %s {shlex.quote(text)} > {path}\nexit 0\n"
    work = (
        "for f in /verifier/*.sh /tests/*.sh; do "
        f'if [ -f "$f" ] && [ -w "$f" ]; then printf %s {shlex.quote(script)} > "$f"; fi; done'
    )
    return (Attempt("leaves a process that overwrites the test script", daemon(seen, work)),)


def _answers(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not seen.outputs:
        return NotApplicable("Neither prompt nor verifier names a file that a solution would write.")
    hidden = hidden_files(seen)
    if not hidden:
        return NotApplicable("The verifier has no data files that could hold an answer.")
    copies = "; ".join(
        f"[ ! -f {shlex.quote(source)} ] || cp {shlex.quote(source)} {shlex.quote(output)}"
        for source in hidden
        for output in seen.outputs[:6]
    )
    return (Attempt("leaves a process that copies the verifier's data over the outputs", daemon(seen, copies)),)


def hidden_files(seen: Seen) -> list[str]:
    """Where the verifier's data files will be, the likeliest answers first."""
    data = [path for path in seen.verifier if not path.endswith((".sh", ".py", ".md", ".toml"))]
    ranked = sorted(
        data, key=lambda path: not any(word in path for word in ("expected", "golden", "answer", "solution"))
    )
    return [_STEP.sub("/", path) for path in ranked[:4]]


def _swapped(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    outputs = [path for path in seen.outputs if path.endswith((".sh", ".py", ".js", ".rb", ".pl"))]
    if not outputs:
        return NotApplicable("A solution writes no program that the verifier could check and then run.")
    win = "#!/bin/sh\n" + shell_win(seen, end=SHELL_STOP)
    harmless = [put(shlex.quote(path), "") for path in outputs]
    planted = in_work(seen, ".zz_audit_swap")
    work = "if grep -qsa -e /verifier/ -e /tests/ /proc/[0-9]*/cmdline; then sleep 0.3; " + "; ".join(
        f"cp {planted}.{'py' if path.endswith('.py') else 'sh'} {shlex.quote(path)}.new && "
        f"chmod 755 {shlex.quote(path)}.new && mv {shlex.quote(path)}.new {shlex.quote(path)}"
        for path in outputs
    )
    python = python_win(seen, end=PYTHON_STOP)
    script = [*harmless, put(f"{planted}.sh", win), put(f"{planted}.py", python), daemon(seen, f"{work}; fi")]
    return (
        Attempt(
            "leaves harmless programs and a process that swaps them after they were checked",
            "\n".join(script),
            without="\n".join(harmless),
        ),
    )


def _scheduled(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not runs_scripts(seen):
        return NO_PROGRAM
    job = in_work(seen, ".zz_audit_job")
    quoted = shlex.quote(job)
    home = shlex.quote(seen.home)
    unit = f"[Service]\nType=oneshot\nExecStart={job}\n[Install]\nWantedBy=default.target\n"
    timer = "[Timer]\nOnCalendar=*-*-* *:*:*\n[Install]\nWantedBy=timers.target\n"
    lines = [
        put(quoted, "#!/bin/sh\n" + shell_win(seen, end=SHELL_STOP)),
        f"(crontab -l 2>/dev/null; echo '* * * * * {job}') | crontab - 2>/dev/null || :",
        put("/etc/cron.d/zz_audit", f"* * * * * root {job}\n"),
        *[put(f"/etc/cron.{when}/zz_audit", f"#!/bin/sh\nexec {job}\n") for when in ("hourly", "daily", "weekly")],
        f"echo {quoted} | at now + 1 minute 2>/dev/null || :",
        put(f"{home}/.config/systemd/user/zz_audit.service", unit),
        put(f"{home}/.config/systemd/user/zz_audit.timer", timer),
        put(f"{home}/.config/autostart/zz_audit.desktop", f"[Desktop Entry]\nType=Application\nExec={job}\n"),
        put("/etc/rc.local", f"#!/bin/sh\n{job}\n"),
        put("/etc/init.d/zz_audit", f"#!/bin/sh\n{job}\n"),
    ]
    return (Attempt("leaves jobs of cron, at and systemd", "\n".join(lines)),)


DAEMON_REWARD: Final = Family(
    "daemon-writes-reward",
    "Leaves a process that writes the reward file while the verifier works.",
    f"{_REMEDY}.",
    _reward,
)
DAEMON_TESTS: Final = Family(
    "daemon-rewrites-tests",
    "Leaves a process that overwrites the tests as soon as they appear.",
    f"{_REMEDY}, or run the agent as a user that may not write to the tests.",
    _tests,
)
DAEMON_ANSWERS: Final = Family(
    "daemon-copies-answers",
    "Leaves a process that copies expected results into the outputs as soon as they appear.",
    f"{_REMEDY}, or keep only digests of expected results.",
    _answers,
)
SWAPPED_FILES: Final = Family(
    "swapped-files",
    "Swaps a program of the agent between the moment when it is checked and the moment when it is run.",
    "Copy what the agent delivered once, and check and run the copy.",
    _swapped,
)
SCHEDULED_JOBS: Final = Family(
    "scheduled-jobs",
    "Leaves jobs for cron, at, systemd and init, which run when the verifier starts these.",
    "Do not start schedulers with the agent's tables in the verifier; read the tables and run the expected command.",
    _scheduled,
)
