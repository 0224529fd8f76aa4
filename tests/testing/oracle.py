# SPDX-License-Identifier: Apache-2.0
"""One oracle for what runs over a mesh: the same function, without a mesh.

A function of one device's blocks runs in ``shard_map``; the oracle runs it on
one device, under ``vmap`` with names for the axes (`emulated`), or once for
each device (`outcome`). A function of whole arrays runs on arrays that are
placed over an Explicit mesh; the oracle gives it plain arrays
(`OracleTestCase.same`). Nothing here knows a type or a module of ours. It has
no tests of its own.
"""
import contextlib
import inspect

import jax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import numpy as np
from testing.sharding import AxisType
from testing.sharding import shard_map
from testing.sharding import typed_mesh

AXES = ('x', 'y')
# In 0.5.3 a gradient inside of shard_map is each device's own.
SUMS = jax.__version_info__ >= (0, 6)


# Two axes, each argument and result with a leading dimension for each of those
# along which it varies.


def spec(axes, manual=AXES):
  """A leading dimension for each of ``axes``, mapped if it is in ``manual``."""
  return P(*(a if a in manual else None for a in AXES if a in axes))


def pick(stacked, axes):
  """One device's results for each axis along which they don't vary."""
  return stacked[tuple(slice(None) if a in axes else 0 for a in AXES)]


def emulated(f, varying, sizes, args):
  """All devices' results, stacked along two leading axes, without devices.

  Args:
    f: a function of one device's blocks.
    varying: for each argument, the axes along which it varies.
    sizes: of the mesh's axes.
    args: all devices' arguments.
  """
  over = lambda axis: [0 if axis in axes else None for axes in varying]
  inner = jax.vmap(f, over('y'), axis_name='y', axis_size=sizes[1])
  return jax.vmap(inner, over('x'), axis_name='x', axis_size=sizes[0])(*args)


def mapped(f, varying, claims, mesh, outer=None, **options):
  """The function of one device's vectors in shard_map over both axes.

  Args:
    f: returns vectors.
    varying: for each argument, the axes along which it varies.
    claims: for each result, those that out_specs name.
    mesh: has both axes, or more with ``axis_names`` in the options.
    outer: if not None, one shard_map is over this axis, and one within it over
      the other.
    **options: of shard_map.

  Returns:
    A function of all devices' arguments.
  """
  signature = inspect.signature(f)

  def per_device(*args, **kwargs):
    args = signature.bind(*args, **kwargs).args
    outs = f(*(x.reshape(x.shape[-1:]) for x in args))
    return tuple(jnp.reshape(o, (1,) * len(axes) + (-1,))
                 for o, axes in zip(outs, claims))

  per_device.__signature__ = signature  # it can be called with keywords

  def over(g, manual, **more):
    return shard_map(
        g, in_specs=tuple(spec(axes, manual) for axes in varying),
        out_specs=tuple(spec(axes, manual) for axes in claims), **more,
        **options)

  if outer is None:
    return over(per_device, AXES, mesh=mesh)
  (inner,) = {*AXES} - {outer}
  return over(lambda *args: over(per_device, inner, axis_names={inner})(*args),
              outer, mesh=mesh, axis_names={outer})


def fault_of_type(own, claimed, stacked):
  """What is wrong with a result's type: it is coarse, or it is unsound.

  Args:
    own: the axes along which the type lets the result vary.
    claimed: those along which it may vary by the rules.
    stacked: all devices' results, by the emulation.

  Returns:
    'coarse' or 'unsound' and the words for it, or None.
  """
  if not own <= {*claimed}:
    return 'coarse', (f'is typed as varying along {sorted(own)}, by the rules '
                      f'it varies along {sorted(claimed)}')
  for n, axis in enumerate(AXES):
    if axis not in own and not np.allclose(
        stacked, np.take(stacked, [0], n), 1e-4, 1e-5, equal_nan=True):
      return 'unsound', (f'differs along {axis!r} and is typed as varying '
                         f'along {sorted(own)}')
  return None


# A row of the first argument for each device; the others are shared by all.


@jax.tree_util.register_pytree_node_class
class Summed:
  """Gradients with respect to what the devices share: the sum of theirs."""

  def __init__(self, value):
    self.value = value

  def tree_flatten(self):
    return (self.value,), None

  @classmethod
  def tree_unflatten(cls, _, children):
    return cls(*children)


def _is_summed(x):
  return SUMS and isinstance(x, Summed)


def alone(f, x, *shared):
  """The results of `f` for each row of `x`, on one device."""
  compiled = jax.jit(f)
  with jax.enable_checks(False):
    return [compiled(row, *shared) for row in x]


def outcome(f, mesh, x, *shared, jit=True, blocks=None):
  """The results of `f` inside shard_map, and the expected ones.

  Args:
    f: a function of a row of `x` and of the shared arguments. Where a leaf of
      its results is `Summed`, devices' results are added up, else stacked.
    mesh: has a device for each row.
    x: the rows.
    *shared: arguments that all devices have whole.
    jit: whether shard_map is compiled.
    blocks: what `alone` gives, if it is known.

  Returns:
    The two, of one structure.
  """
  blocks = alone(f, x, *shared) if blocks is None else blocks
  names = P(mesh.axis_names)

  def together(*ys):
    return (jax.tree.map(lambda *zs: sum(zs), *ys) if _is_summed(ys[0])
            else np.stack(ys))

  def body(x, *shared):
    return jax.tree.map(lambda y: y if _is_summed(y) else jnp.asarray(y)[None],
                        f(x[0], *shared), is_leaf=_is_summed)

  run = shard_map(
      body, mesh=mesh, in_specs=(names,) + (P(),) * len(shared),
      out_specs=jax.tree.map(lambda y: P() if _is_summed(y) else names,
                             blocks[0], is_leaf=_is_summed))
  got = (jax.jit(run) if jit else run)(x, *shared)
  return got, jax.tree.map(together, *blocks, is_leaf=_is_summed)


# Whole arrays over an Explicit mesh.


def explicit_mesh(*sizes):
  """A mesh of the first devices, with Explicit axes 'x' and 'y'."""
  return typed_mesh(sizes, AXES[:len(sizes)], (AxisType.Explicit,) * len(sizes))


def set_mesh(mesh):
  """A context with a mesh, under this release's name for it."""
  return (getattr(jax, 'set_mesh', None) or jax.sharding.use_mesh)(mesh)


class MeshTestCase(jtu.JaxTestCase):
  """Skips its tests on a machine with fewer devices than their meshes have."""
  devices = 4

  def setUp(self):
    super().setUp()
    if len(jax.devices()) < self.devices:
      self.skipTest(f'needs {self.devices} devices')


class OracleTestCase(MeshTestCase):
  """Compares what ran over a mesh with what ran without."""

  def assert_same(self, got, want, rtol, atol=None):
    """One structure, and of each leaf one dtype and, nearly, one value."""
    self.assertEqual(jax.tree.structure(got), jax.tree.structure(want))
    leaves = jax.tree_util.tree_flatten_with_path(want)[0]
    for a, (path, b) in zip(jax.tree.leaves(got), leaves):
      name = jax.tree_util.keystr(path)
      self.assertEqual(a.dtype, b.dtype, name)
      np.testing.assert_allclose(a, b, rtol=rtol, err_msg=name,
                                 atol=rtol if atol is None else atol)

  def same(self, f, args, specs, sizes=(2, 2), *, mesh=None, want=None,
           jit=True, context=False, **tolerance):
    """`f` of arrays placed over an Explicit mesh, against plain arrays.

    Args:
      f: a function of arrays.
      args: the arrays.
      specs: where each is placed; one with None isn't.
      sizes: of the mesh's axes.
      mesh: the mesh itself, if it is made already.
      want: the results without a mesh; those of `f` if None.
      jit: whether `f` is compiled.
      context: whether the mesh is that of the context, too.
      **tolerance: ``rtol`` and ``atol``.

    Returns:
      The results over the mesh.
    """
    want = f(*args) if want is None else want
    mesh = mesh or explicit_mesh(*sizes)
    placed = [
        jnp.asarray(a) if s is None else jax.device_put(
            a, NamedSharding(mesh, s)) for a, s in zip(args, specs)]
    with set_mesh(mesh) if context else contextlib.nullcontext():
      got = (jax.jit(f) if jit else f)(*placed)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
      self.assertAllClose(np.asarray(g), np.asarray(w), **tolerance)
    return got
