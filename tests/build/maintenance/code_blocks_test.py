# SPDX-License-Identifier: Apache-2.0
"""Code blocks of pages ask our modules for what these have."""

import ast
import re

from conftest import ROOT


def absent(code):
  """The names that our modules lack of those a block asks, and their count."""
  tree, lacking, asked = ast.parse(code), [], 0
  ours = {}
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom):
      for name in node.names:
        path = ROOT.joinpath(*node.module.split("."), f"{name.name}.py")
        if path.is_file():
          ours[name.asname or name.name] = path
  for node in ast.walk(tree):
    if (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        and node.value.id in ours):
      asked += 1
      path = ours[node.value.id]
      if not re.search(rf"^(def |class )?{node.attr}\b",
                       path.read_text(encoding="utf-8"), re.MULTILINE):
        lacking.append(f"{path.name}: {node.attr}")
  return lacking, asked


def test_code_blocks_ask_for_what_is_there():
  lacking, asked = [], 0
  for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"),
                            re.MULTILINE | re.DOTALL):
      if not block.startswith(">>>"):
        found, count = absent(block)
        lacking += found
        asked += count
  assert asked and not lacking


def test_a_code_block_that_asks_for_what_is_gone_is_found():
  code = ("from jax._src.varying.rules import primitives as p\n"
          "p.join(my_p)\np.type_by_union(my_p)\n")
  assert absent(code) == (["primitives.py: join"], 2)
