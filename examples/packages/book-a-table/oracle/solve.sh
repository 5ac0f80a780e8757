#!/bin/sh
set -eu
printf 'day: Friday\ntime: 19:00\nguests: 6\nnote: no nuts for one guest\n' > /app/booking.txt
