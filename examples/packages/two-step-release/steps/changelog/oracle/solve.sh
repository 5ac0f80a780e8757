#!/bin/sh
set -eu
printf '## 1.0\n\n- First release\n' > /app/CHANGELOG.md
