#!/bin/sh
set -eu
printf '# 2.1\n\n- Search is twice as fast\n- Dark mode\n' > /app/NOTES.md
