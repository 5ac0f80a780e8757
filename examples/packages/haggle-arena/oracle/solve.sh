#!/bin/sh
set -eu
echo 'offer 100' > /app/offer.txt
