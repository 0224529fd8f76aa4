# SPDX-License-Identifier: Apache-2.0
"""What the tests of shard_map share: each base's spelling, meshes, an oracle.

Imported by test files, also of other families; it has no tests of its own.
"""
import importlib.util

import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.sharding import eight_devices
from testing.sharding import shard_map

eight_devices()


MESHES = {'1d': (4,), '2d': (2, 2)}
# Whether a partly manual shard_map, or one in another, is run without jit.
RUNS_PARTLY_MANUAL = hasattr(jax, 'smap')  # from 0.7 on


def make_mesh(*sizes):
  """A mesh of the first devices, with the axes 'x', 'y' and 'z'."""
  devices = np.array(jax.devices()[:np.prod(sizes)]).reshape(sizes)
  return Mesh(devices, ('x', 'y', 'z')[:len(sizes)])


def axes_of(x):
  """The mesh axes along which a tracer varies, from 0.6.0 on."""
  aval = getattr(x, 'aval', None)
  if hasattr(aval, 'mat'):
    return aval.mat.varying
  return getattr(aval, 'vma', frozenset())


def equations(jaxpr):
  """Each equation of a jaxpr, and of the jaxprs within them."""
  for eqn in jaxpr.eqns:
    yield eqn
    for inner in core.jaxprs_in_params(eqn.params):
      yield from equations(inner)


def ships(module):
  """True if the jax that runs has a module, such as one of a patch."""
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:  # not even its package
    return False


def cast(x, axes):
  """`x`, cast to vary along `axes` too: no other axes than it doesn't yet."""
  if not axes:
    return x
  if hasattr(lax, 'pcast'):
    return lax.pcast(x, tuple(axes), to='varying')
  return lax.pvary(x, tuple(axes))


def maybe_jit(jit):
  return jax.jit if jit else lambda f: f


def _blocks(a, sizes):
  blocks = [a]
  for dim, size in enumerate(sizes):
    blocks = [b for a in blocks for b in np.split(a, size, dim)]
  return np.stack(blocks)


def _unblocked(a, sizes):
  blocks = list(np.asarray(a))
  for dim, size in reversed(list(enumerate(sizes))):
    blocks = [np.concatenate(blocks[i:i + size], dim)
              for i in range(0, len(blocks), size)]
  return blocks[0]


def blockwise(f, sizes, *args):
  """Applies `f` to each device's block of the arguments, on one device."""
  with jax.enable_checks(False):
    out = jax.jit(jax.vmap(f))(*(_blocks(a, sizes) for a in args))
  return jax.tree.map(lambda a: _unblocked(a, sizes), out)


def run_rows(f, where, *args, shared=None, out=None):
  """Applies `f` to each device's row of the arguments, by shard_map.

  Args:
    f: a function of a row of each argument, and of `shared` if there is any.
    where: a mesh's kind, a key of MESHES, and whether to compile.
    *args: arrays with four rows.
    shared: an argument that all devices have whole.
    out: out_specs of the result; if None, the devices' results are stacked.

  Returns:
    f's results, stacked or as `out` says.
  """
  kind, jit = where
  mesh = make_mesh(*MESHES[kind])
  def g(*rows):
    n = len(args)
    got = f(*(r[0] for r in rows[:n]), *rows[n:])
    return got if out is not None else jax.tree.map(lambda y: y[None], got)
  rest = () if shared is None else (shared,)
  every = P(mesh.axis_names)
  h = shard_map(g, mesh=mesh, out_specs=every if out is None else out,
                in_specs=(every,) * len(args) + (P(),) * len(rest))
  return maybe_jit(jit)(h)(*args, *rest)


class BlockwiseTestCase(jtu.JaxTestCase):
  """Compares shard_map with the plain function on each device's block."""

  def check(self, f, where, *args, tol=2e-5):
    """`f` of the blocks of `args`: the same structure, dtypes and values."""
    kind, jit = where
    mesh = make_mesh(*MESHES[kind])
    spec = P(*mesh.axis_names)
    g = shard_map(f, mesh=mesh, in_specs=(spec,) * len(args), out_specs=spec)
    got = maybe_jit(jit)(g)(*args)
    want = blockwise(f, MESHES[kind], *args)
    self.assertEqual(jax.tree.structure(got), jax.tree.structure(want))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
      self.assertEqual(a.dtype, b.dtype)
      np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


def fill(x, s):
  """A block-shaped array of `s`, so that out_specs can name every axis."""
  return jnp.zeros(x.shape, x.dtype) + s
