#!/bin/sh
touch /app/CHANGELOG.md /app/release.tar.gz
