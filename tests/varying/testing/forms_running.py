# SPDX-License-Identifier: Apache-2.0
"""Draws a form and ways to run it, runs it, and compares with an oracle."""
import random

import jax
import jax.numpy as jnp
import numpy as np
from testing import oracle
from testing.sharding import partly_manual
from testing.sharding import UNCHECKED
# Importing these puts their forms in the table.
from varying.testing import forms_derivatives as _derivatives  # noqa: F401
from varying.testing import forms_flow as _flow  # noqa: F401
from varying.testing import forms_more as _more  # noqa: F401
from varying.testing.common import axes_of
from varying.testing.common import make_mesh
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
  sharded_now[0] = False
  try:
    return oracle.emulated(body, IN_AXES, (2, 2), args)
  finally:
    sharded_now[0] = True


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
    outs = [jnp.asarray(o, 'f') for o in f(*xs)]
    if types is not None:
      types[:] = map(axes_of, outs)
    return outs

  outer = mesh[-1] if mesh.startswith('nested') else None
  return oracle.mapped(
    per_device, IN_AXES, claims, make_mesh(*sizes), outer, **options
  )


def unchecked(f, claims):
  def run(*args):
    sharded_now[0] = False
    try:
      return on_mesh(f, ['xy'] * len(claims), check=False)(*args)
    finally:
      sharded_now[0] = True

  return run


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
  plain = (
    unchecked(f, claims)
    if options.get('ref')
    else (lambda *xs: emulated(f, xs))
  )
  picked = lambda *xs: tuple(map(oracle.pick, plain(*xs), claims))
  as_jitted = {'eager': 'jit', 'disable': 'jit', 'eager_grad': 'grad'}
  want = TRANSFORMS[as_jitted.get(transform, transform)](picked)(*args)
  try:
    got = TRANSFORMS[transform](on_mesh(f, claims, mesh, types=types))(*args)
  except Exception as e:  # pylint: disable=broad-except
    return f'refused: {type(e).__name__}: {e}'
  if transform == 'jit':
    for i, each in enumerate(zip(types, claims, jax.jit(plain)(*args))):
      fault = oracle.fault_of_type(*each)
      if fault:
        return f'result {i} {fault[1]}'
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
