#!/bin/sh
# Raises by five, never above what its customer pays.
set -eu
message=$(cat)
cap=$(printf '%s\n' "$message" | sed -n 's/.*pays exactly \([0-9]*\) for.*/\1/p' | tail -n 1)
if [ -n "$cap" ]; then echo "$cap" > cap; fi
cap=$(cat cap)
price=$(printf '%s\n' "$message" | sed -n 's/.*The last bid is \([0-9]*\), by.*/\1/p' | tail -n 1)
next=$((price + 5))
if [ "$next" -gt "$cap" ]; then next=$cap; fi
if [ "$next" -gt "$price" ]; then echo "BID $next"; else echo PASS; fi
