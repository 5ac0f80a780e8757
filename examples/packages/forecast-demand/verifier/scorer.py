#!/usr/bin/env python3
"""Scores a submission bundle: reads the folder named as its argument, answers with one JSON object."""

import csv
import json
import sys
from pathlib import Path

TRUTH = {"11": "12", "12": "14", "13": "10"}
forecasts = sorted(Path(sys.argv[1]).rglob("forecast.csv"))
rows = list(csv.DictReader(forecasts[0].read_text().splitlines())) if forecasts else []
right = sum(TRUTH.get(row.get("day", "")) == row.get("demand") for row in rows[:3])
print(json.dumps({"reward": round(right / 3, 4), "board": "demand-2026", "rank": None}))
