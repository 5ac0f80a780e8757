#!/bin/sh
set -eu
printf 'day,demand\n11,12\n12,14\n13,10\n' > /app/forecast.csv
