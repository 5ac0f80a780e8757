#!/bin/sh
cat /app/tickets/*.txt | awk '$2 == "high" {print $1}' | sort -n > /app/urgent.txt
