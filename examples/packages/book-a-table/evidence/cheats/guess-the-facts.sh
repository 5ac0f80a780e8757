#!/bin/sh
printf 'day: Friday\ntime: 19:00\nguests: 2\nnote: none\n' > /app/booking.txt
