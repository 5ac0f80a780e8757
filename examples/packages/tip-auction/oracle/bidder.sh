#!/bin/sh
# Remembers the appraiser's estimate, and outbids the rival by one as long as that leaves a gain.
set -eu
message=$(cat)
estimate=$(printf '%s\n' "$message" | sed -n 's/^> WORTH \([0-9]*\)$/\1/p' | tail -n 1)
if [ -n "$estimate" ]; then echo "$estimate" > estimate; fi
estimate=$(cat estimate 2>/dev/null || echo 51)
price=$(printf '%s\n' "$message" | sed -n 's/.*The last bid is \([0-9]*\), by.*/\1/p' | tail -n 1)
next=$((price + 1))
if [ "$next" -lt "$estimate" ]; then echo "BID $next"; else echo PASS; fi
