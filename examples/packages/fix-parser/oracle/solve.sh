#!/bin/sh
set -eu
cp "$(dirname "$0")/duration.py" /app/duration.py
