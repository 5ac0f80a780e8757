#!/bin/sh
reward=0
grep -qx '## 1.0' /app/CHANGELOG.md 2>/dev/null && grep -qx -- '- First release' /app/CHANGELOG.md && reward=1
echo "{\"reward\": $reward}" > /logs/verifier/reward.json
echo "$reward" > /logs/verifier/reward.txt
