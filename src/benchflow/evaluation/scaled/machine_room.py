"""How much room a machine has."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from benchflow.evaluation.scaled.admission import Vitals


def vitals(places: tuple[Path, ...]) -> Vitals:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    return Vitals(free, min(shutil.disk_usage(place).free >> 20 for place in places))
