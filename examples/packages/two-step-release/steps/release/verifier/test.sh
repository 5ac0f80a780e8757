#!/bin/sh
reward=0
[ "$(cat /app/VERSION 2>/dev/null)" = 1.0 ] &&
    [ "$(tar -tzf /app/release.tar.gz 2>/dev/null | sort | tr '\n' ' ')" = 'CHANGELOG.md VERSION tool.sh ' ] && reward=1
echo "{\"reward\": $reward}" > /logs/verifier/reward.json
echo "$reward" > /logs/verifier/reward.txt
