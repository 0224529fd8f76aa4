#!/bin/sh
echo "coverage is not collected here" >&2
exit 1
