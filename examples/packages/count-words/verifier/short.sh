#!/bin/sh
size=$(wc -c < /app/count.sh 2>/dev/null || echo 9999)
[ "$size" -lt 400 ] && reward=1 || reward=0
echo "{\"reward\": $reward}" > /logs/verifier/reward.json
echo "$reward" > /logs/verifier/reward.txt
