#!/bin/sh
found=/app/urgent.txt
complete=0; sorted=0
[ "$(sort -n "$found" 2>/dev/null | tr '\n' ' ')" = "97 101 118 126 " ] && complete=1
[ $complete = 1 ] && [ "$(cat "$found")" = "$(sort -n "$found")" ] && sorted=1
reward=$(awk "BEGIN {print ($complete + $sorted) / 2}")
printf '{"reward": %s, "metrics": {"complete": %s, "sorted": %s}}\n' "$reward" "$complete" "$sorted" > /logs/verifier/reward.json
echo "$reward" > /logs/verifier/reward.txt
