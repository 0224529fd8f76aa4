# SPDX-License-Identifier: Apache-2.0
"""Exported functions of dictionaries without strings for keys (jax#32680)."""

from absl.testing import parameterized
import jax
from jax import export
from jax._src import config
from jax._src import test_util as jtu
from jax._src.export import _export
import numpy as np
from testing.red import red

config.parse_flags_with_absl()

X = np.arange(3, dtype=np.float32)


def through_a_file(f, *args):
  exported = export.export(jax.jit(f))(*args)
  return export.deserialize(exported.serialize(vjp_order=1))


@red('^TypeError: .*only for dictionaries with string keys', bases='>=0.8.1')
@red('^TypeError: non-string passed to CreateString', bases='<0.8.1')
class DictKeysTest(jtu.JaxTestCase):

  @red('^ValueError: The invocation args and kwargs must have the same '
       'pytree structure as when the', bases='<0.8.1', cases=['bytes'])
  @parameterized.named_parameters(
      ('integers', (2, 10, -1)), ('tuples', ((1, 'a'), (1, 'b'), (0, 'c'))),
      ('floats', (.1, 1e300, -0.5)), ('bytes', (b'b', b'\x00', b'a')),
      ('booleans', (True, False)), ('one', (None,)))
  def test_keys(self, keys):
    def f(d, e):
      return {k: d[k] * (i + 1) for i, k in enumerate(keys)}, e['a']
    d = {k: X + i for i, k in enumerate(keys)}
    loaded = through_a_file(f, d, {'a': X, 'b': {}})
    got = loaded.call(d, {'a': X, 'b': {}})
    self.assertAllClose(got, f(d, {'a': X, 'b': {}}))
    self.assertEqual([type(k) for k in got[0]],
                     [type(k) for k in sorted(keys)] if None not in keys
                     else [type(None)])
    self.assertEqual(loaded.in_tree, jax.tree.structure(
        ((d, {'a': X, 'b': {}}), {})))
    with self.assertRaisesRegex(ValueError, 'same pytree structure'):
      loaded.call({'other': X}, {'a': X, 'b': {}})

  def test_gradient(self):
    d = {1: X, 3: {2: X}}
    def f(d):
      return (d[1] * d[3][2]).sum()
    loaded = through_a_file(f, d)
    self.assertAllClose(jax.grad(loaded.call)(d), {1: X, 3: {2: X}})

  @red('^AssertionError: .*only for dictionaries with string keys',
       bases='>=0.8.1')
  # Bytes came back as strings.
  @red(r"^AssertionError: Regex didn't match: 'TypeError: jax\.export: a "
       r'dictionary \.\*expected keys that are', bases='<0.8.1')
  def test_another_key_is_refused(self):
    for key in (np.int64(3), float('inf'), frozenset()):
      try:
        through_a_file(lambda d: d, {key: X})
        said = 'stored'
      except Exception as e:  # pylint: disable=broad-except
        said = f'{type(e).__name__}: {e}'
      self.assertRegex(said, 'TypeError: jax.export: a dictionary .*expected '
                       'keys that are strings, numbers')

  def test_a_reader_without_it_refuses(self):
    stored = export.export(jax.jit(lambda d: d))({1: X}).serialize()
    name = next(n for n in _export.deserialization_registry
                if n.startswith('dict with keys'))
    known = _export.deserialization_registry.pop(name)
    try:
      with self.assertRaisesRegex(
          ValueError, 'unregistered type `dict with keys other than strings'):
        export.deserialize(stored)
    finally:
      _export.deserialization_registry[name] = known
