#!/bin/sh
cp /app/changes.txt /app/NOTES.md
