#!/bin/sh
# The score is the share of boxes saved; a packing that loses, invents or overfills is worth nothing.
cd "$(dirname "$0")" || exit 1
tr ' ' '\n' < /app/packing.txt | grep . | sort -n > /tmp/packed
sort -n items.txt | cmp -s - /tmp/packed && valid=1 || valid=0
awk '{s = 0; for (i = 1; i <= NF; i++) s += $i; if (s > 10) bad = 1} END {exit bad}' /app/packing.txt || valid=0
boxes=$(grep -c . /app/packing.txt)
reward=$(awk "BEGIN {print $valid * (8 - $boxes) / 8}")
echo "{\"reward\": $reward, \"metadata\": {\"boxes\": $boxes}}" > /logs/verifier/reward.json
echo "$reward" > /logs/verifier/reward.txt
