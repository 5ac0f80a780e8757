#!/bin/sh
set -eu
printf 'At least 12 characters.\nNever reused.\nKept in the password manager.\n' > /app/password-policy.txt
