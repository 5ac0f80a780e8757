#!/bin/sh
set -eu
cd /app
printf '## 1.0\n\n- First release\n' > CHANGELOG.md
echo 1.0 > VERSION
tar -czf release.tar.gz tool.sh VERSION CHANGELOG.md
