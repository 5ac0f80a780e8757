"""`Perturbation`: one respect in which a verification differs from the usual one, and how it is applied to a box.

A sound verdict does not depend on the time zone, the locale, the day, a random seed, the number of processors, the
network or the number of the user.
In: a perturbation and a started box of the verifier. Out: variables and the words that commands start with, and why
something could not be applied: a perturbation that was not applied shows nothing. Only callers ask for one.
"""

from __future__ import annotations

import functools
import platform
import struct
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchflow.errors import SandboxFailure
from benchflow.sandbox.protocol import Sandbox

PLACE: Final = "/run/verifier-ground/perturbed"
_PROGRAMS: Final = Path(__file__).parent / "kit" / "perturbed"
_TIMEOUT_SEC: Final = 60.0
_LOCALES: Final = ("LC_ALL", "LANG")
OTHER_USER: Final = "4242:4242"
_GIVE: Final = """
p=$2
while [ "$p" ]; do chmod a+x "$p"; p=${p%/*}; done
[ "$2" = / ] || chown -hR "$1" "$2"
mkdir -p "$3" && chown "$1" "$3"
"""
"""Gives a working folder and a home to a user; folders above stay whose they are and can be passed through."""
_MARK: Final = b"benchcube clock\0"
"""What stands before the two numbers that are written into the library."""
_ONLY_ONE: Final = 3
"""The exit code of `pin` where there is one processor anyway."""


@dataclass(frozen=True, slots=True)
class Perturbation:
    """What is different."""

    name: str
    label: str
    """In words, as the end of a sentence: "in another time zone"."""
    env: Mapping[str, str] = field(default_factory=dict)
    """More variables for the programs of the verifier."""
    time_zone: bool = False
    """A time zone in which it is another day."""
    locale: bool = False
    """Another locale of the environment."""
    one_processor: bool = False
    offline: bool = False
    """No network."""
    other_user: bool = False
    """A user that the environment does not know, who owns the working folder."""
    clock_offset_sec: int = 0
    """How far the time of day is ahead, for programs that load shared libraries."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What commands of the verifier get, and why parts of a perturbation could not be applied."""

    env: Mapping[str, str] = field(default_factory=dict)
    start: tuple[str, ...] = ()
    """The words before the command."""
    not_applied: tuple[str, ...] = ()


async def apply(wanted: Perturbation, sandbox: Sandbox, user: str, declared: Mapping[str, str]) -> Applied:
    """Apply all but the network to a box. `declared` are the variables that the package sets: they stay."""
    env, refused = dict(wanted.env), list[str]()
    if wanted.time_zone:
        env["TZ"] = await _time_zone(sandbox, datetime.now(UTC).hour)
    if wanted.locale:
        current = next((declared[name] for name in _LOCALES if name in declared), _image_locale(sandbox))
        found = other_locale(await _locales(sandbox, user), current)
        if found is None:
            refused.append("the environment has no other locale")
        else:
            env |= dict.fromkeys(_LOCALES, found)
    wants = {*env, *(["LD_PRELOAD"] if wanted.clock_offset_sec else [])}
    kept = sorted(wants & declared.keys())
    if kept:
        refused.append(f"the package sets {', '.join(kept)}")
        env = {}
    if wanted.other_user:
        home = f"{PLACE}/home"
        words = ["/bin/sh", "-c", _GIVE, "sh", user, sandbox.spec.workdir.rstrip("/") or "/", home]
        given = await sandbox.exec(words, user="root", cwd="/", timeout=_TIMEOUT_SEC)
        refused += [] if given.ok else ["the files could not be given to another user"]
        env |= {"HOME": home} if "HOME" not in declared else {}
    start: tuple[str, ...] = ()
    if wanted.clock_offset_sec and not kept:
        why = await _shift_clock(sandbox, user, wanted.clock_offset_sec)
        env |= {"LD_PRELOAD": _CLOCK} if why is None else {}
        refused += [why] if why is not None else []
    if wanted.one_processor:
        why = await _pin(sandbox, user)
        start = () if why is not None else (f"{PLACE}/pin",)
        refused += [why] if why is not None else []
    return Applied(env, start, tuple(refused))


def other_locale(available: Iterable[str], current: str) -> str | None:
    """A locale that differs from the current one: if possible one of another language, in which UTF-8 stays UTF-8."""
    names = sorted(set(available))
    same = _normal(current or "C")
    foreign = [name for name in names if not name.startswith(("C", "POSIX", "en"))]
    ranked = [*(name for name in foreign if _normal(name).endswith("utf8")), *foreign, *names]
    return next((name for name in ranked if _normal(name) != same), None)


def other_day(hour: int) -> tuple[str, str]:
    """A time zone in which it is another day at this hour (UTC): its name, and a form that needs no data."""
    return ("Pacific/Kiritimati", "<+14>-14") if hour >= _NOON else ("Etc/GMT+12", "<-12>12")


_NOON: Final = 12


async def _time_zone(sandbox: Sandbox, hour: int) -> str:
    name, rule = other_day(hour)
    place = f"/usr/share/zoneinfo/{name}"
    result = await sandbox.exec(
        ["/bin/sh", "-c", '[ -f "$1" ]', "sh", place], user="root", cwd="/", timeout=_TIMEOUT_SEC
    )
    return name if result.ok else rule


async def _locales(sandbox: Sandbox, user: str) -> Collection[str]:
    result = await sandbox.exec(
        ["/bin/sh", "-c", "exec locale -a"], user=user, cwd="/", timeout=_TIMEOUT_SEC, max_output=1 << 20
    )
    return result.stdout.decode(errors="replace").split() if result.ok else ()


def _image_locale(sandbox: Sandbox) -> str:
    env = {**(sandbox.spec.image.env if sandbox.spec.image is not None else {}), **sandbox.spec.env}
    return next((env[name] for name in _LOCALES if env.get(name)), "C")


def _normal(locale: str) -> str:
    plain = locale.lower().replace("-", "")
    return "c" if plain == "posix" else plain


async def _pin(sandbox: Sandbox, user: str) -> str | None:
    """Put `pin` into the box; why it cannot be used there, None if it can."""
    program = _program("pin")
    if program is None:
        return f"programs are not limited to one processor on {platform.machine()}"
    await sandbox.write_file(f"{PLACE}/pin", program, mode=0o755)
    try:
        result = await sandbox.exec([f"{PLACE}/pin"], user=user, cwd="/", timeout=_TIMEOUT_SEC)
    except SandboxFailure as error:
        return f"the sandbox does not limit programs to one processor: {error}"
    if result.exit_code == _ONLY_ONE:
        return "the verifier has one processor anyway"
    return None if result.ok else "the sandbox does not limit programs to one processor"


_CLOCK: Final = f"{PLACE}/clock.so"
_SLACK_SEC: Final = 3600


async def _shift_clock(sandbox: Sandbox, user: str, offset: int) -> str | None:
    """Put the library into the box; why programs there do not see another time of day, None if they do."""
    library = _program("clock")
    if library is None:
        return f"there is no library for another time of day on {platform.machine()}"
    now = time.time_ns()
    start = library.index(_MARK) + len(_MARK)
    numbers = struct.pack("<qq", offset, now)
    await sandbox.write_file(_CLOCK, library[:start] + numbers + library[start + len(numbers) :], mode=0o755)
    command = ["/bin/sh", "-c", "exec date +%s"]
    result = await sandbox.exec(command, user=user, env={"LD_PRELOAD": _CLOCK}, cwd="/", timeout=_TIMEOUT_SEC)
    shown = result.stdout.strip()
    if shown.isdigit() and abs(int(shown) - now // 10**9 - offset) < _SLACK_SEC:
        return None
    return "programs of the environment do not load the library that shows another time of day"


@functools.cache
def _program(name: str) -> bytes | None:
    """One of the shipped programs for this machine."""
    place = _PROGRAMS / name / f"{name}-{platform.machine()}"
    return place.read_bytes() if place.is_file() else None
