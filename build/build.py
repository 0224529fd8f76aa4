#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds, proves and tests Mend: `python3 build/build.py --help`."""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from mend.ground import bootstrap



def _main() -> int:
  bootstrap.ensure(str(pathlib.Path(__file__).resolve()))
  from mend.ground.errors import MendError
  try:
    from mend import cli  # reads build/bases.toml, for the help
  except (MendError, OSError) as e:
    step = getattr(e, "next_step", "see that build/ may be read")
    print(f"FAILED: build.py: {getattr(e, 'what', e)} Next: {step}",
          file=sys.stderr)
    return 2
  return cli.main(sys.argv[1:])


if __name__ == "__main__":
  try:
    code = _main()
  except KeyboardInterrupt:  # before a command has begun, or after it
    print(bootstrap.STOPPED, file=sys.stderr)
    code = 130
  sys.exit(code)
