#!/bin/sh
set -eu
mkdir -p /app/archive
cd /app/logs
: > /tmp/names
for file in service.log.*; do
    [ "$file" = service.log.0 ] && continue
    gzip -c "$file" > "/app/archive/$file.gz"
    rm "$file"
    echo "$file.gz" >> /tmp/names
done
sort /tmp/names > /app/archived.txt
