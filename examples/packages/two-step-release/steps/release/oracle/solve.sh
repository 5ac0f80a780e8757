#!/bin/sh
set -eu
cd /app
echo 1.0 > VERSION
tar -czf release.tar.gz tool.sh VERSION CHANGELOG.md
