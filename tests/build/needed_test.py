"""The deletion check: what can be left out, and who misses it."""

import ast

from mend.editing import patches
from mend.proof import needed
from mend.releases import bases, source
from mend.trees import omissions, tree
import pytest

MODULE = """\
import tables
NAMES = ('a', 'b', 'c')
RULES = {'while': one, **dict.fromkeys(('scan', 'cond'), two)}
tables.rules[p] = rule
register(a_p, b_p, how=1)
register(c_p, rule)
for _p in (d_p, e_p):
  tables.rules[_p] = other
if hasattr(tables, 'late'):
  tables.late.append(rule)
lower = 1
def f():
  tables.rules[p] = None
"""


def test_each_registration_is_found_and_leaves_a_module_that_parses():
  found = list(omissions._registrations(MODULE))
  assert [what for _, what, _ in found] == [
      "'a'", "'b'", "'c'", "'while': one", "'scan'", "'cond'",
      "tables.rules[p] = rule", "a_p", "b_p", "register(c_p, rule)", "d_p",
      "e_p", "tables.late.append(rule)"]
  texts = [left for *_, left in found]
  assert len(set(texts)) == len(texts)
  for text in texts:
    ast.parse(text)
    assert text != MODULE
  assert "dict.fromkeys(('cond', 'cond')" in texts[4]
  assert "RULES = { **dict" in texts[3]


def test_an_edit_is_left_out_alone():
  base, series = bases.one("0.12.0.1"), patches.load()
  origin = source.pristine(base)
  result = tree.mended(series, base, origin)
  found = omissions.of_result(result, series, origin)
  edits = [o for o in found if o.kind == "edit"]
  assert len(edits) > 100 and len(found) - len(edits) > 50
  for omission in edits[:20]:
    whole = result.files[omission.file]
    assert omission.text != whole
    assert omission.text != tree.read(origin / omission.file) or sum(
        e.file == omission.file for p in series
        for e in p.edits_for(base)) == 1


@pytest.fixture
def overlay(tmp_path):
  jax = tmp_path / "site-packages" / "jax"
  tree.write(jax / "core.py", "whole\n")
  return jax, needed.Overlay(jax, tmp_path / "over")


def test_an_overlay_leaves_the_original_alone(overlay):
  jax, over = overlay
  here = over.folder / "jax" / "core.py"
  with pytest.raises(KeyboardInterrupt):
    with over.holding("jax/core.py", "part\n"):
      assert here.read_text() == "part\n"
      assert (jax / "core.py").read_text() == "whole\n"
      raise KeyboardInterrupt
  assert here.read_text() == "whole\n"


def test_what_no_test_misses_is_listed():
  base = bases.one("0.12.0.1")
  one, two = (omissions.Omission(label, "varying/loops", "f", "", "edit")
              for label in ("one", "two"))
  text = needed.section(base, [needed.Missed(one, "a_test A.b", True),
                               needed.Missed(two, "", False)])
  assert text.splitlines()[-1] == "* two"
  assert text.count("| varying | 2     | 0 ") == 1
