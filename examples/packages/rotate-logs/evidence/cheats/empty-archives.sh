#!/bin/sh
mkdir -p /app/archive
for n in 1 2 10; do gzip -c /dev/null > /app/archive/service.log.$n.gz; rm /app/logs/service.log.$n; done
