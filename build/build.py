#!/usr/bin/env python3
"""Builds, proves and tests Mend: `python3 build/build.py --help`."""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from mend.ground import bootstrap

if __name__ == "__main__":
  bootstrap.ensure(str(pathlib.Path(__file__).resolve()))
  from mend import cli
  sys.exit(cli.main(sys.argv[1:]))
