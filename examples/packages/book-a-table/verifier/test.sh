#!/bin/sh
has() { grep -Eqi "$1" /app/booking.txt 2>/dev/null; }
guests=0; note=0
has '^day: *friday' && has '^time: *19:00' && has '^guests: *6 *$' && guests=1
has '^note:.*nut' && note=1
reward=$(awk "BEGIN {print ($guests + $note) / 2}")
printf '{"reward": %s, "metrics": {"guests": %s, "note": %s}}\n' "$reward" "$guests" "$note" > /logs/verifier/reward.json
echo "$reward" > /logs/verifier/reward.txt
