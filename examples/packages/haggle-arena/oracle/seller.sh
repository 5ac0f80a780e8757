#!/bin/sh
# Takes what the bicycle is worth, and asks for more first.
set -eu
offer=$(grep -o 'OFFER [0-9][0-9]*' | tail -n 1 | cut -d ' ' -f 2)
if [ "${offer:-0}" -ge 100 ]; then
  echo 'ACCEPT'
else
  echo 'OFFER 118'
fi
