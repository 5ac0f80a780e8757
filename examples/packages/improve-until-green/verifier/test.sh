#!/bin/sh
has() { grep -Eqi "$1" /app/password-policy.txt 2>/dev/null && echo 1 || echo 0; }
length=$(has '(1[2-9]|[2-9][0-9]) characters'); reuse=$(has 'reuse'); storage=$(has 'manager')
reward=$(awk "BEGIN {print ($length + $reuse + $storage) / 3}")
printf '{"reward": %s, "metrics": {"length": %s, "reuse": %s, "storage": %s}}\n' "$reward" "$length" "$reuse" "$storage" \
    > /logs/verifier/reward.json
echo "$reward" > /logs/verifier/reward.txt
