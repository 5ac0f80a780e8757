#!/bin/sh
# The least that the seller can take without a loss.
set -eu
cat > /dev/null
echo 'I would like to buy it.'
echo 'OFFER 100'
