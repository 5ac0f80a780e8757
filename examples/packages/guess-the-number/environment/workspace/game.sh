#!/bin/sh
# The hidden number is a digest of this file's own folder name: the same for everyone, and no secret worth stealing.
number=37
mkdir -p /app/trajectory
log=/app/trajectory/ors-rewards.jsonl
tries=$(wc -l < "$log" 2>/dev/null || echo 0)
if [ "$1" -lt "$number" ]; then answer=low; elif [ "$1" -gt "$number" ]; then answer=high; else answer=right; fi
if [ "$answer" = right ]; then
    echo "{\"reward\": $(awk "BEGIN {r = 1 - $tries * 0.1; print (r > 0.3 ? r : 0.3)}"), \"finished\": true}" >> "$log"
else
    echo '{"reward": 0.0, "finished": false}' >> "$log"
fi
echo "$answer"
