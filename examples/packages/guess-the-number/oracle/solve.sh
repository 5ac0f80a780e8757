#!/bin/sh
set -eu
cd /app
./game.sh 37
