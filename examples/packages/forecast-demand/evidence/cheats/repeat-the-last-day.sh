#!/bin/sh
printf 'day,demand\n11,10\n12,10\n13,11\n' > /app/forecast.csv
