#!/bin/sh
reward=0
[ "$(tar -xzOf /app/release.tar.gz VERSION 2>/dev/null)" = 1.0 ] && reward=1
echo "{\"reward\": $reward}" > /logs/verifier/reward.json
echo "$reward" > /logs/verifier/reward.txt
