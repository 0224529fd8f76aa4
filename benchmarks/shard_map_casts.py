# SPDX-License-Identifier: Apache-2.0
"""Finds JAX's own functions that lack a cast inside shard_map.

    python benchmarks/shard_map_casts.py [--only=REGEX] [--parts=A,B] [--lower]
                                         [--guard] [--missing]

Upstream casts in its own functions, one by one, where a loop's first carry or a
branch doesn't vary and what it becomes does. This traces each function of
`sweep_cases.table` on the jax at hand, a pristine release or a checkout of
upstream's main: its value, gradient and vmap, with all arguments varying, each
alone, and all but each. It prints the place in JAX's sources where a call is
refused, and the functions, parts and mixtures that end there: a place is a pull
request. Functions of jax.random that refuse a key that varies less than their
parameters do so on purpose, and are left out.

``--parts`` names those of forward, grad and vmap that are traced; ``--lower``
lowers them, too, for the loops of primitives' lowering rules. ``--guard`` is
for a checkout with the commits of varying/branches and
upstream/branch_operands: the calls that the guard refuses come with the others.
``--missing`` prints the public functions that the table doesn't call.
"""
import argparse
import collections
import os
import re
import sys
import traceback

import shard_map_sweep as sweep  # sets XLA's flags: before jax

# pylint: disable=g-import-not-at-top
import jax
from jax import lax
import jax.numpy as jnp
import jax.scipy as jsp
from jax.sharding import Mesh
import numpy as np

import varying.testing.sweep_cases as cases

MODULES = {'jnp': jnp, 'jnp.linalg': jnp.linalg, 'lax': lax, 'nn': jax.nn,
           'random': jax.random, 'special': jsp.special,
           'jsp.linalg': jsp.linalg}
ON_PURPOSE = 'requires all arguments to have matching type. Got key type'
# Files of JAX's machinery, through which each call goes.
_MACHINERY = re.compile(
    r'control_flow|interpreters|(^|/)(?<!random/)(ad_util|api|api_util|core'
    r'|custom_derivatives|flattree|linear_util|pjit|shard_map|traceback_util'
    r'|tree_util|ufunc_api|util|vectorize)\.py$|lax/lax\.py$'
    r'|numpy/(array_methods|util)\.py$')


def parts_of(f, kinds, limits=''):
  """The parts that are traced, and which arguments are differentiated."""
  parts, wrt = cases.parts_of(f, kinds, limits)
  parts.pop('jvp', None)  # with a direction that doesn't vary: the caller's
  parts['vmap'] = lambda *args: jax.vmap(f)(
      *(jnp.stack([a, a]) for a in args))
  return parts, wrt


def place_of(error):
  """The innermost place of a refusal in a function of JAX's own."""
  root = os.path.dirname(jax.__file__)
  frames = [(os.path.relpath(t.filename, root), t.lineno, t.name)
            for t in traceback.extract_tb(error.__traceback__)
            if t.filename.startswith(root)]
  own = [f for f in frames if not _MACHINERY.search(f[0])]
  return '{}:{} {}'.format(*own[-1]) if own else 'no function of its own'


def refusals(f, kinds, limits='', only=(), lower=False):
  """Yields (mixture, part, error) of each call that shard_map alone refuses."""
  parts, wrt = parts_of(f, kinds, limits)
  parts = {name: g for name, g in parts.items() if not only or name in only}
  sizes = cases.sizes_of(False)
  mesh = Mesh(np.array(jax.devices()[:cases.DEVICES]), tuple(sizes))
  for mixture in cases.mixtures(len(kinds), False):
    placed = cases.Placed(kinds, mixture, sizes)
    for part, g in parts.items():
      h = sweep.shard_map(placed.within(g), mesh=mesh, in_specs=placed.specs,
                          out_specs=placed.specs_of(part, wrt))
      try:
        if lower:
          jax.jit(h).lower(*placed.args)
        else:
          jax.make_jaxpr(h)(*placed.args)
      except Exception as e:  # pylint: disable=broad-exception-caught
        if ON_PURPOSE in str(e):
          continue
        try:
          jax.make_jaxpr(g)(*placed.per_device[0])
        except Exception:  # pylint: disable=broad-exception-caught
          continue
        yield '|'.join(a or '-' for a in mixture), part, e


def missing(table):
  """The public functions of each module that no name of the table has."""
  called = {word for name in table for word in re.split(r'[._ ]', name)} | {
      name.rpartition('.')[2] for name in table}
  return {m: sorted(
      n for n in dir(module) if not n.startswith('_') and n not in called
      and callable(f := getattr(module, n)) and not isinstance(f, type))
          for m, module in MODULES.items()}


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--only', default='')
  parser.add_argument('--parts', default='')
  parser.add_argument('--lower', action='store_true')
  parser.add_argument('--guard', action='store_true')
  parser.add_argument('--missing', action='store_true')
  args = parser.parse_args()
  jax.config.update('jax_traceback_filtering', 'off')  # places are frames
  if args.guard:
    jax.config.update('jax_varying_predicates', 'error')
  table = cases.table()
  if args.missing:
    for module, names in missing(table).items():
      print(f'{module}: {" ".join(names)}\n')
    return 0
  found = collections.defaultdict(lambda: collections.defaultdict(list))
  entries = [e for e in sorted(table.items()) if re.search(args.only, e[0])]
  for name, entry in entries:
    print(f'\r{name:30}', end='\r', file=sys.stderr, flush=True)
    for mixture, part, e in refusals(
        *entry, only=args.parts.split(',') if args.parts else (),
        lower=args.lower):
      first = ' '.join(str(e).split())[:72]
      found[place_of(e), f'{type(e).__name__}: {first}'][name].append(
          f'{part} [{mixture}]')
  for (place, words), names in sorted(found.items()):
    print(f'{place}\n  {words}')
    for name, calls in names.items():
      print(f'    {name}: {", ".join(calls)}')
  functions = {name for names in found.values() for name in names}
  print(f'jax {jax.__version__}: {len(entries)} functions, {len(functions)} '
        f'refused, at {len(found)} places')
  return bool(found)


if __name__ == '__main__':
  sys.exit(main())
