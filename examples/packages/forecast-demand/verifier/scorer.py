#!/usr/bin/env python3
"""Scores a sealed submission: reads the folder that it is told of, answers with one JSON object."""

import csv
import json
import os
from pathlib import Path

TRUTH = {"11": "12", "12": "14", "13": "10"}
forecasts = sorted(Path(os.environ["BENCHFLOW_SUBMISSION"]).rglob("*forecast.csv"))
rows = list(csv.DictReader(forecasts[0].read_text().splitlines())) if forecasts else []
right = sum(TRUTH.get(row.get("day", "")) == row.get("demand") for row in rows[:3])
print(json.dumps({"reward": round(right / 3, 4), "board": "demand-2026", "rank": None}))
