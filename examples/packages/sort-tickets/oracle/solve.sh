#!/bin/sh
set -eu
cat /app/tickets/north.txt /app/tickets/south.txt | awk '$2 == "high" && $3 != "closed:" {print $1}' | sort -n > /app/urgent.txt
