"""What clients are not told: folders of this machine, and anything that a verifier or a judge said.

Who holds an episode may hand everything on to the agent. The whole reason is in the log of the server.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchflow.rewards import Unscored, Verdict

_SHORTEST: Final = 4
"""A shorter place, such as `/`, is no secret, and its name is part of others."""


_SILENT: Final = ("verifier", "judge")
"""Categories whose reasons may quote what a verifier wrote."""


class Discretion:
    """Replaces paths below the folders that this process uses by their last part, and reasons of verifiers."""

    def __init__(self, more: Iterable[Path] = ()) -> None:
        named = [Path(name) for name in (tempfile.gettempdir(), sys.prefix, sys.base_prefix)]
        known = [*named, Path.home(), Path.cwd(), Path(__file__).parents[3], *more]
        places = {str(form) for place in known for form in (place.absolute(), place.resolve())}
        longest_first = sorted((place for place in places if len(place) >= _SHORTEST), key=len, reverse=True)
        names = "|".join(map(re.escape, longest_first))
        self._pattern: Final = re.compile(rf"(?:{names})(?:/[^\s'\"`:;,()]*)?(?![\w.-])")

    def hidden(self, text: str) -> str:
        """The text without them."""
        return self._pattern.sub(lambda found: f"…/{found[0].rstrip('/').rpartition('/')[2]}", text)

    def told(self, verdict: Verdict) -> Verdict:
        """The verdict for clients."""
        return self.told_unscored(verdict) if isinstance(verdict, Unscored) else verdict

    def told_unscored(self, verdict: Unscored) -> Unscored:
        if verdict.category in _SILENT:
            return replace(verdict, reason=f"The {verdict.category} gave no reward ({verdict.code}).")
        return replace(verdict, reason=self.hidden(verdict.reason))
