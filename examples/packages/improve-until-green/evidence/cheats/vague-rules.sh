#!/bin/sh
echo 'Be careful.' > /app/password-policy.txt
