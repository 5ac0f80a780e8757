#!/bin/sh
# Tells the bidder what the picture is worth.
set -eu
sed -n 's/.*The picture is worth \([0-9]*\)\..*/WORTH \1/p' | tail -n 1
