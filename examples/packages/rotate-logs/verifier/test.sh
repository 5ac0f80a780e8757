#!/bin/sh
# Half of the reward for the archive, half for the list.
cd "$(dirname "$0")" || exit 1
archived=1
for file in expected/*; do
    name=$(basename "$file")
    gzip -dc "/app/archive/$name.gz" 2>/dev/null | cmp -s - "$file" || archived=0
    [ -e "/app/logs/$name" ] && archived=0
done
[ -f /app/logs/service.log.0 ] || archived=0
[ "$(ls /app/archive 2>/dev/null | wc -l)" -eq 3 ] || archived=0
listed=0
printf 'service.log.1.gz\nservice.log.10.gz\nservice.log.2.gz\n' | cmp -s - /app/archived.txt && listed=1
reward=$(awk "BEGIN {print ($archived + $listed) / 2}")
printf '{"reward": %s, "metrics": {"archived": %s, "listed": %s}}\n' "$reward" "$archived" "$listed" \
    > /logs/verifier/reward.json
echo "$reward" > /logs/verifier/reward.txt
