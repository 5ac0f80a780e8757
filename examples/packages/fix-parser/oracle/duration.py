"""Durations as texts."""

import re

UNITS = {"s": 1, "m": 60, "h": 3600}
FORM = re.compile(r"(?:(?P<h>[0-9]+)h)?(?:(?P<m>[0-9]+)m)?(?:(?P<s>[0-9]+)s)?")


def seconds(text: str) -> int:
    """The seconds of a duration.

    A duration is one or more numbers, each followed by a unit (s, m, h, in either case), the larger unit first and no unit
    twice, such as `90s`, `15m` or `1H30m`. Spaces around it do not matter. Anything else is a ValueError.
    """
    found = FORM.fullmatch(text.strip().lower())
    if not found or not any(found.groupdict().values()):
        raise ValueError(f"not a duration: {text!r}")
    return sum(int(value) * UNITS[unit] for unit, value in found.groupdict().items() if value)
