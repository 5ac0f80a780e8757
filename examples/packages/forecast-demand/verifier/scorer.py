#!/usr/bin/env python3
"""Scores a sealed submission: reads the folder that it is told of, answers with one JSON object."""

import json
import os
from pathlib import Path

TRUTH = {"11": "12", "12": "14", "13": "10"}
LARGEST = 1000
"""Bytes: a forecast is four short lines."""

forecasts = sorted(Path(os.environ["BENCHFLOW_SUBMISSION"]).rglob("*forecast.csv"))
data = b""
if forecasts and forecasts[0].is_file():
    with forecasts[0].open("rb") as file:
        data = file.read(LARGEST + 1)
lines = data.decode(errors="replace").split() if len(data) <= LARGEST else []
rows = [line.split(",") for line in lines[1:]] if lines[:1] == ["day,demand"] else []
# Exactly one row for each day: listing every number is no forecast.
days = [row[0] for row in rows if len(row) == 2]
right = sum(TRUTH[day] == demand for day, demand in rows) if sorted(days) == sorted(TRUTH) and len(rows) == len(TRUTH) else 0
print(json.dumps({"reward": round(right / len(TRUTH), 4), "board": "demand-2026", "rank": None}))
