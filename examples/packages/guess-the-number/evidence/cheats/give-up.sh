#!/bin/sh
./game.sh 1
./game.sh 2
