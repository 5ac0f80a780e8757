"""Templates and how values look in them: numbers, times, sizes, marks of outcomes.

Everything is escaped. Texts also pass `visible` on their way out, so that no template can forget it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from benchflow.view.page_addresses import address, encoded_query
from benchflow.view.plain_text import cut, markdown, one_line, visible

TEMPLATES: Final = Path(__file__).with_name("templates")
STATIC: Final = Path(__file__).with_name("static")
UNKNOWN: Final = "–"
OUTCOMES: Final[Mapping[str, str]] = {
    "full": "full reward",
    "partial": "partial reward",
    "zero": "no reward",
    "unscored": "unscored",
}


def render(template: str, **values: Any) -> str:
    """A page as HTML."""
    return _environment().get_template(template).render(values)


def compile_templates() -> None:
    """Compile all templates, so that the first page need not wait for it."""
    environment = _environment()
    for name in environment.list_templates(extensions=["html"]):
        environment.get_template(name)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,  # an upgrade under a running viewer must not mix its templates with older code
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Callable[..., Any]] = {
        "count": counted,
        "cost": cost,
        "duration": duration,
        "markdown": markdown,
        "megabytes": megabytes,
        "moment": moment,
        "one_line": one_line,
        "percent": percent,
        "query": encoded_query,
        "reward": reward,
        "short": shortened,
        "size": size,
        "tokens": tokens,
    }
    made.filters.update(filters)
    made.globals.update(address=address, cut=cut, OUTCOMES=OUTCOMES, place=place)
    return made


def _shown(value: Any) -> Any:
    return value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)


def reward(value: float | None, sign: str = "") -> str:
    """A reward: up to three decimals, a dash if it is not known."""
    if value is None:
        return UNKNOWN
    if abs(value) >= 1e6:
        return f"{value:{sign}.3g}"
    text = f"{value:{sign}.3f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "+0") else text


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def duration(seconds: float | None) -> str:
    """A time span in its two largest units."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min"


def cost(dollars: float | None) -> str:
    if dollars is None:
        return UNKNOWN
    return f"${dollars:,.2f}" if dollars >= 1 or not dollars else f"${dollars:.2g}"


def tokens(number: float | None) -> str:
    if number is None:
        return UNKNOWN
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            scaled = number / (1e3 if letter == "k" else limit)
            return f"{scaled:.1f} {letter}"
    return f"{number:,.0f}"


def megabytes(number: int | None) -> str:
    """Mebibytes, as sizes are shown."""
    return size(None if number is None else number << 20)


def size(octets: int | None) -> str:
    if octets is None:
        return UNKNOWN
    amount = float(octets)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return UNKNOWN


def moment(text: str) -> Markup:
    """A time as people write it, in UTC; a text that is not a time stays as it is."""
    try:
        at = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return Markup("{}").format(visible(text))
    return Markup('<time datetime="{}">{}</time>').format(text, f"{at:%-d %b %Y, %H:%M} UTC")


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def shortened(digest: str | None) -> str:
    """The beginning of a digest."""
    return UNKNOWN if not digest else digest.removeprefix("sha256:")[:12]


def place(value: float | None, low: float = 0.0, high: float = 1.0, width: float = 100.0) -> str:
    """Where a value is on an axis, as a coordinate; values beyond its ends are at its ends."""
    if value is None or high <= low:
        return "0"
    return f"{min(1.0, max(0.0, (value - low) / (high - low))) * width:.2f}"
