#!/bin/sh
sed 's/^/- /' /app/minutes.txt > /app/decisions.md
