#!/bin/sh
printf 'b a a B b c, c; c d' | sh /app/count.sh > /tmp/one 2>/dev/null
printf '3 b\n3 c\n2 a\n' | cmp -s - /tmp/one && one=1 || one=0
printf 'The cat. the DOG the cat' | sh /app/count.sh > /tmp/two 2>/dev/null
printf '3 the\n2 cat\n1 dog\n' | cmp -s - /tmp/two && two=1 || two=0
reward=$((one * two))
echo "{\"reward\": $reward}" > /logs/verifier/reward.json
echo "$reward" > /logs/verifier/reward.txt
