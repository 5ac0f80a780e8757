#!/bin/sh
notes=/app/NOTES.md
has() { grep -qi "$1" "$notes" 2>/dev/null; }
complete=0; clean=0
has '^# 2.1' && has 'search' && has 'dark mode' && complete=1
[ $complete = 1 ] && ! has 'build machine' && ! has 'cache module' && clean=1
reward=$(awk "BEGIN {print ($complete + $clean) / 2}")
printf '{"reward": %s, "metrics": {"complete": %s, "clean": %s}}\n' "$reward" "$complete" "$clean" > /logs/verifier/reward.json
echo "$reward" > /logs/verifier/reward.txt
