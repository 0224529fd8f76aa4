# SPDX-License-Identifier: Apache-2.0
"""For tools that still call setup.py: hands over to the backend.

`pip install .` does not come here; see pyproject.toml and build/mend.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "build"))

from mend.trees import backend

if __name__ == "__main__":
  if sys.argv[1:2] not in (["bdist_wheel"], ["sdist"]):
    sys.exit("setup.py: bdist_wheel or sdist.\nNext: python3 -m pip install .")
  dist = ROOT / "dist"
  dist.mkdir(exist_ok=True)
  make = (backend.build_wheel if sys.argv[1] == "bdist_wheel"
          else backend.build_sdist)
  print(dist / make(str(dist)))
