# SPDX-License-Identifier: Apache-2.0
"""Draws a form and ways to run it, runs it, and compares with an oracle."""
import random

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
# Importing these puts their forms in the table.
from testing.sharding import partly_manual
from testing.sharding import shard_map
from testing.sharding import UNCHECKED
from varying.testing import forms_derivatives as _derivatives  # noqa: F401
from varying.testing import forms_flow as _flow  # noqa: F401
from varying.testing import forms_more as _more  # noqa: F401
from varying.testing.common import axes_of
from varying.testing.common import make_mesh
from varying.testing.forms import AX
from varying.testing.forms import FORMS
from varying.testing.forms import LATER
from varying.testing.forms import sharded_now
from varying.testing.forms_ways import DIFF
from varying.testing.forms_ways import SECOND
from varying.testing.forms_ways import TRANSFORMS
from varying.testing.forms_ways import WRAPS

IN_AXES = ['x', 'y', 'xy', '']


def inputs():
  """One value a device, in descending order where its sign is positive."""
  rng = np.random.RandomState(0)
  draw = lambda *shape: rng.uniform(0.2, 1.0, shape).astype('f')
  a, b, c, w = draw(2, 3), draw(2, 3), draw(2, 2, 3), draw(3)
  a, b = np.sort(a), np.sort(b)
  a[0], a[1], b[0] = a[0, ::-1], -a[1], -b[0]
  return [a, b, c - 0.5, w]


def emulated(f, args):
  """All devices' results, stacked along two leading axes, without devices."""
  body = lambda *xs: tuple(jnp.asarray(o, 'f') for o in f(*xs))
  ins = lambda axis: tuple(0 if axis in i else None for i in IN_AXES)
  inner = jax.vmap(body, ins('y'), axis_name='y', axis_size=2)
  sharded_now[0] = False
  try:
    return jax.vmap(inner, ins('x'), axis_name='x', axis_size=2)(*args)
  finally:
    sharded_now[0] = True


def spec(axes, manual=AX):
  """A leading dimension for each of ``axes``, mapped if it is in ``manual``."""
  return P(*(a if a in manual else None for a in AX if a in axes))


def on_mesh(f, claims, mesh='full', check=True, types=None):
  """The form in shard_map.

  Args:
    f: the form.
    claims: the axes of each of its results.
    mesh: 'full', manual over all axes; 'partly', over two of three; or
      'nested_x' and 'nested_y': over this axis, and over the other one in a
      shard_map within.
    check: whether shard_map checks.
    types: a list that gets what the results vary over.

  Returns:
    A function of all devices' inputs.
  """
  sizes = (2, 2, 2) if mesh == 'partly' else (2, 2)
  options = {} if check else dict(UNCHECKED)
  if mesh == 'partly':
    options.update(partly_manual('z'))

  def per_device(*xs):
    outs = [jnp.asarray(o, 'f') for o in f(*(x.reshape(3) for x in xs))]
    if types is not None:
      types[:] = map(axes_of, outs)
    return tuple(
      o.reshape((1,) * len(axes) + (3,)) for o, axes in zip(outs, claims)
    )

  def specs(manual):
    return dict(
      in_specs=tuple(spec(axes, manual) for axes in IN_AXES),
      out_specs=tuple(spec(axes, manual) for axes in claims),
    )

  if not mesh.startswith('nested'):
    return shard_map(
      per_device, mesh=make_mesh(*sizes), **specs(AX), **options
    )
  outer = mesh[-1]
  (inner,) = set(AX) - {outer}

  def within(*xs):
    return shard_map(
      per_device, axis_names={inner}, **specs(inner), **options
    )(*xs)

  return shard_map(
    within,
    mesh=make_mesh(2, 2),
    axis_names={outer},
    **specs(outer),
    **options,
  )


def unchecked(f, claims):
  def run(*args):
    sharded_now[0] = False
    try:
      return on_mesh(f, ['xy'] * len(claims), check=False)(*args)
    finally:
      sharded_now[0] = True

  return run


def pick(stacked, axes):
  """One device's results for each axis along which they don't vary."""
  return stacked[tuple(slice(None) if a in axes else 0 for a in AX)]


FORWARD = ('jvp', 'lin', 'cjvp')


def is_program(form, wrap, transform):
  """True if there is such a program, check or no check."""
  options = FORMS[form][2]
  derivative = transform in DIFF or wrap in FORWARD
  if derivative and (options.get('rough') or form.startswith('while')):
    return False
  if options.get('fwd') is False and (transform in SECOND or wrap in FORWARD):
    return False
  # Compiling an operation on an array of size 0, mapped, is a segmentation
  # fault in jaxlib 0.11.2, check or no check: its pass
  # ManualComputationUnusedInputsPattern.
  crashes = (0, 11) <= jax.__version_info__ < (0, 12) and 'eager' in transform
  if form == 'size0_carry' and crashes:
    return False
  if transform == 'disable' and (
    form.startswith('scan_zero') or options.get('ref')
  ):
    return False  # upstream
  return not (
    options.get('ref')
    and (transform in DIFF or wrap != 'none' or 'eager' in transform)
  )


def fault_of(form, wrap, transform, mesh):
  """The fault of the program, or None."""
  f, claims, options = FORMS[form]
  f, args, types = WRAPS[wrap](f), inputs(), []
  oracle = (
    unchecked(f, claims)
    if options.get('ref')
    else (lambda *xs: emulated(f, xs))
  )
  picked = lambda *xs: tuple(map(pick, oracle(*xs), claims))
  as_jitted = {'eager': 'jit', 'disable': 'jit', 'eager_grad': 'grad'}
  want = TRANSFORMS[as_jitted.get(transform, transform)](picked)(*args)
  try:
    got = TRANSFORMS[transform](on_mesh(f, claims, mesh, types=types))(*args)
  except Exception as e:  # pylint: disable=broad-except
    return f'refused: {type(e).__name__}: {e}'
  if transform == 'jit':
    for i, (own, axes, all_devices) in enumerate(
      zip(types, claims, jax.jit(oracle)(*args))
    ):
      if not own <= set(axes):
        return f'result {i} is typed {set(own)}, by the rules {axes!r}'
      for n, axis in enumerate(AX):
        if axis not in own and not np.allclose(
          all_devices, np.take(all_devices, [0], n), 1e-4, 1e-5
        ):
          return f'result {i} differs along {axis!r} and is typed {set(own)}'
  for g, w in zip(*map(jax.tree_util.tree_leaves, (got, want))):
    if not np.allclose(g, w, 1e-3, 1e-4, equal_nan=True):
      return f'got {g}, not {w}'
  return None


def meshes(form, wrap, transform):
  """The kinds of mesh that there is such a program for."""
  # The compiler of 0.6.0 aborts on some of the partly manual ones, and JAX has
  # no callbacks there.
  if not LATER or form == 'callback':
    return ['full']
  return ['full', 'full', 'partly', 'nested_x', 'nested_y']


def program(seed):
  rng = random.Random(seed)
  while True:
    choice = (
      rng.choice(list(FORMS)),
      rng.choice(list(WRAPS)),
      rng.choice(list(TRANSFORMS)),
    )
    if is_program(*choice):
      return *choice, rng.choice(meshes(*choice))
