# SPDX-License-Identifier: Apache-2.0
"""Runs a random program in shard_map and without devices, and compares."""
import dataclasses
import os
import random

import jax
from jax import lax
import jax.extend as _extend  # noqa: F401  # HEADER's adds an option on 0.10.1
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing import oracle
from testing.sharding import UNCHECKED
from varying.testing import fuzz_checked
from varying.testing.common import axes_of as varying_axes
from varying.testing.common import cast
from varying.testing.common import make_mesh
from varying.testing.common import ships
from varying.testing.fuzz_generator import Generator
from varying.testing.fuzz_outer import OUTER
from varying.testing.fuzz_program import ALL
from varying.testing.fuzz_program import AXES
from varying.testing.fuzz_program import INPUTS
from varying.testing.fuzz_program import MEETING
from varying.testing.fuzz_program import ONES
from varying.testing.fuzz_program import blocks_of
from varying.testing.fuzz_program import cast_by_hand
from varying.testing.fuzz_program import statements_of


# Transformations, other carries. 0.6.0 needs the patches for its transposes and
# forward mode as well.
# Pristine jax is asked for the programs that are drawn for the mended one.
AS_MENDED = bool(os.environ.get('MEND_FUZZ_AS_MENDED'))
WIDE = jax.__version_info__ >= (0, 10) or (
    AS_MENDED and jax.__version_info__ >= (0, 6)
    or ships('jax._src.varying.autodiff.transposes'))
# 0.6.0's shard_map lowers no ref; before 0.9.1 none comes to vary.
NEW_REF = jax.new_ref if jax.__version_info__ >= (0, 9, 1) else None
# To tell a crash of jaxlib's own: what the check has no part in.
OPTIONS = dict(UNCHECKED if os.environ.get('MEND_FUZZ_UNCHECKED') else {})
KEYWORDS = AS_MENDED or ships('jax._src.meshes.by_name')
REDUCES = jax.__version_info__ >= (0, 10)
OUTER_SHARE = .4  # in a transformation
MOST_ATTEMPTS = 3  # to draw a program whose gradients aren't all zero
HEADER = ('import functools\nimport jax\nimport jax.extend\n'
          'from jax import lax\nfrom jax.experimental import checkify\n'
          'import jax.numpy as jnp\n\n')
THIRD = dict(auto='Auto', explicit='Explicit')  # layouts with an axis besides


def source_of(program):
  return HEADER + '\n'.join(program.lines('body'))


def function_of(program, **scope):
  exec(source_of(program), scope)  # pylint: disable=exec-used
  return scope['body']


def inputs(seed, sizes):
  rng = np.random.RandomState(seed)
  shape = lambda axes: [n for a, n in zip(AXES, sizes) if a in axes] + [3]
  return [rng.uniform(-1, 1, shape(axes)).astype('f')
          for axes in INPUTS.values()]


def emulate(program, sizes, args):
  """All devices' results, stacked along two leading axes, without devices."""
  index = lambda: lax.axis_index('x') + lax.axis_index('y')
  body = function_of(
      program, vary=lambda x: x, meet=lambda x: x + 0. * index(),
      new_ref=lambda x: jax.new_ref(x + 0. * index()),
      custom=lambda kind, f, *rules: f,  # whose rules are its derivatives
      opaque=lambda kind, f: f, linear=lambda f, transpose, r, x: f(r, x),
      by_hand=lambda x, axis: x, along=lambda x: x, reduced=lambda x: x,
      unreduced=lambda x, axis: x,
      total=lambda g, sums, shared: (lax.psum(g, sums) if sums else g) / (
          lax.psum(1, shared) if shared else 1))
  return oracle.emulated(body, INPUTS.values(), sizes, args)


def axes_of(x):
  return ALL - x.rep if hasattr(x, 'rep') else varying_axes(x)  # 0.5.3 has rep


def differs_along(x):
  """The axes along which values differ, by which ``out_specs`` go.

  On 0.5.3 a type says how a cotangent is kept as well, and a value of one that
  varies can be known to be the same (that of a ``linear_call`` with a sum over
  devices inside, whose transpose by convention is that sum).
  """
  if hasattr(x, 'rep'):
    return ALL - getattr(x.rep, 'equal', x.rep)
  return varying_axes(x)


def custom(kind, f, *rules):
  made = kind(f)
  (made.defjvp if kind is jax.custom_jvp else made.defvjp)(*rules)
  return made


def by_hand(x, axis):
  """A reduction by a user who knows that x doesn't vary along the axis."""
  if hasattr(lax, 'pcast'):
    return lax.pcast(x, axis, to='varying')
  return lax.pvary(x, axis)


def unreduced(x, axis):
  """``x`` as each device's part of a sum over the axis."""
  return lax.pcast(cast(x, [axis] if axis not in axes_of(x) else []), axis,
                   to='unreduced')


def vary(tree):
  """The arrays and numbers of a tree, cast to vary along all axes."""
  return jax.tree.map(lambda x: cast(x, sorted(ALL - axes_of(x))),
                      jax.tree.map(jnp.asarray, tree))


def sharded(program, sizes, out_axes, record, layout='flat'):
  """The program in shard_map, its results joined along ``out_axes``.

  Nested, it is in a shard_map over 'y' that is in one over 'x'. The other
  layouts are those of a mesh that has a third axis, over which it isn't.
  """
  body = function_of(
      program, vary=vary,
      meet=lambda x: x, total=lambda g, *_: g, new_ref=NEW_REF,
      custom=custom, opaque=lambda kind, f: kind(f), by_hand=by_hand,
      linear=lambda f, transpose, *args: jax.custom_derivatives.linear_call(
          f, transpose, *args),
      along=along if layout == 'auto' else lambda x: x,
      reduced=lambda x: lax.pcast(x, AXES, to='reduced'), unreduced=unreduced)

  def per_device(a, b, c, w, v):
    outs = body(a, b, c, w, v)
    record.append([differs_along(x) for x in outs])
    return outs

  mesh, options = make_mesh(*sizes), dict(OPTIONS)
  if layout in THIRD:
    mesh = mesh_with_third(sizes, THIRD[layout])
    options['axis_names'] = ALL
  f = oracle.mapped(per_device, INPUTS.values(), out_axes, mesh,
                    'x' if layout == 'nested' else None, **options)
  if layout == 'keywords':
    return lambda a, b, c, w, v: f(a, b, v=v, w=w, c=c)
  return f


def along(x):
  """``x``, spread along the mesh's Auto axis."""
  return lax.with_sharding_constraint(x, P('z'))


def mesh_with_third(sizes, kind):
  mesh, auto = make_mesh(*sizes, 2), jax.sharding.AxisType.Auto
  return jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=(
      auto, auto, getattr(jax.sharding.AxisType, kind)))


def weighted(outs):
  weights = lambda o: np.linspace(1., 2., o.size, dtype='f').reshape(o.shape)
  return sum(jnp.sum(o * weights(o)) for o in outs)


REVERSE = dict(
    reverse=lambda f: jax.jit(jax.value_and_grad(f, range(5), has_aux=True)),
    remat=lambda f: jax.jit(jax.value_and_grad(
        jax.checkpoint(f), range(5), has_aux=True)),
    eager=lambda f: jax.value_and_grad(f, range(5), has_aux=True),
    forward=lambda f: jax.jit(lambda *args: (lambda value, t, aux: (
        (value, aux), [t] * 5))(*jax.jvp(
            f, args, tuple(map(jnp.cos, args)), has_aux=True))),
    twice=lambda f: jax.jit(lambda *args: (f(*args), jax.jvp(jax.grad(
        lambda *a: f(*a)[0], range(5)), args, tuple(map(jnp.cos, args)))[1])),
)
VALUES = dict(
    jit=lambda f: lambda *args: (jax.jit(f)(*args), ()),
    eager=lambda f: lambda *args: (f(*args), ()),
)


@dataclasses.dataclass
class Fault:
  """A fault of a program.

  ``kind`` is 'refused', 'coarse' (typed as varying along more axes than the
  rules say), 'unsound' (along fewer than its values do), 'wrong value', 'wrong
  gradient', or 'oracle': the emulation failed, and says nothing.
  """
  kind: str
  text: str

  def __str__(self):
    return f'{self.kind}: {self.text}'


class Case:
  """The program of a seed, the mesh it is run on, and how.

  A program whose gradients are all zero shows nothing: the next is drawn,
  ``attempt`` says how many times.
  """

  def __init__(self, seed, control_flow, wide=WIDE, attempt=0):
    rng = random.Random(f'{seed}/{attempt}')
    self.seed, self.attempt = seed, attempt
    self.differentiable = seed % 2 == 0
    self.sizes, self.mode = (2, 2), 'reverse' if self.differentiable else 'jit'
    self.layout = 'flat'
    if not wide:
      self.sizes = rng.choice([(2, 2)] * 3 + [(1, 2), (1, 1)])
    else:
      self.sizes = rng.choice([(2, 2)] * 4 + [
          (4, 1), (1, 3), (2, 4), (1, 4), (1, 1)])
      # Eager ones compile each operation: few, and small.
      modes = [m for m in (REVERSE if self.differentiable else VALUES)
               if m != 'eager']
      self.mode = 'eager' if rng.random() < .06 else rng.choice(
          [self.mode] * 3 + modes)
      if NEW_REF:
        self.layout = rng.choice(
            ['flat'] * 10 + ['nested', 'nested', *THIRD]
            + ['keywords'] * KEYWORDS)
      elif KEYWORDS and rng.random() < .1:
        self.layout = 'keywords'
      if self.layout == 'explicit' and self.mode == 'eager':
        # Upstream makes zeros of that mesh on one device: "cannot reshape
        # array of size 1 into shape (2,2,2)".
        self.layout = 'auto'
      if self.layout in THIRD and np.prod(self.sizes) > 4:
        self.sizes = (2, 2)
    # Most faults need few statements, and large programs take long.
    size = rng.choice([1, 2, 2, 3] if wide else [1, 2, 3, 4])
    self.program = Generator(
        f'{seed}/{attempt}', control_flow, self.differentiable, wide,
        1 if self.mode == 'eager' else size, self.sizes,
        self.mode in ('forward', 'twice'),
        bool(NEW_REF) and self.mode != 'eager', rng.choice([1, 2, 2, 3]),
        rng.choice([6, 9, 12, 40]) if wide else 40,
        self.layout not in THIRD,  # no callbacks over some axes
        REDUCES and self.layout == 'flat' and self.mode != 'eager'
        and rng.random() < .15,
        REDUCES and self.layout == 'flat' and self.mode != 'eager',
        passes=wide and self.mode != 'twice' and rng.random() < .3).program()
    # What is reduced, or cast by hand, has no such cast beside its own.
    text = source_of(self.program)
    self.is_cast = (wide and seed % 8 in (1, 4) and
                    'reduced(' not in text and 'by_hand(' not in text)
    if self.is_cast:
      cast_by_hand(self.program)
    self.args = inputs(seed, self.sizes)
    self.outer = 'plain'
    if wide and self.mode != 'eager' and rng.random() < OUTER_SHARE:
      # vmap chooses among branches by their index. What is reduced over two
      # axes has no cast upstream by an index that varies along one.
      text = source_of(self.program)
      apart = '= reduced(' in text and ('.cond(' in text or '.switch(' in text)
      self.outer = rng.choice([
          o for o in OUTER if not (apart and 'vmap' in o)])
    self.solve()

  def solve(self):
    ones = frozenset(a for a, n in zip(AXES, self.sizes) if n == 1)
    self.want_axes = self.program.solve({ONES: ones}, list(INPUTS.values()))

  def again(self, control_flow, wide=WIDE):
    return Case(self.seed, control_flow, wide, self.attempt + 1)

  @property
  def transform(self):
    return (REVERSE if self.differentiable else VALUES)[self.mode]

  def emulated(self, *args):
    outs = emulate(self.program, self.sizes, args)
    return weighted([oracle.pick(o, a)
                     for o, a in zip(outs, self.want_axes)]), outs

  def expected(self):
    """The loss, all devices' results and gradients, by the emulation."""
    how = VALUES['jit'] if not self.differentiable else (
        REVERSE['reverse'] if self.mode in ('remat', 'eager')
        else self.transform)
    return how(OUTER[self.outer](self.emulated))(*self.args)

  def features(self):
    """The features of the program, for a count of what was drawn."""
    found = {f'run: {self.mode}', f'shard_map: {self.layout}',
             f'mesh: {self.sizes[0]}x{self.sizes[1]}', f'in: {self.outer}'}
    for statement in statements_of(self.program):
      if hasattr(statement, 'kind'):
        found.add(f'{type(statement).__name__.lower()}: {statement.kind}')
      if hasattr(statement, 'call'):
        found.add(f'passed: {statement.call}')
      if getattr(statement, 'agrees', None):
        found.add('branch by what agrees')
      for block in blocks_of(statement):
        text = '\n'.join(block.lines('f'))
        found.update(f'{type(statement).__name__.lower()} with a collective'
                     for name in MEETING if f'lax.{name}(' in text)
    text = source_of(self.program)
    if fuzz_checked.wanted(self.seed):
      found.add(fuzz_checked.FEATURE)
    if self.is_cast:
      found.add('cast by hand')
    return sorted(found | {f'lax.{name}' for name in (*MEETING, 'axis_index')
                           if f'lax.{name}(' in text})


def fault_of(case):
  """The fault of the program, or None."""
  try:
    expected = case.expected()
  except Exception as e:  # pylint: disable=broad-except
    return Fault('oracle', f'{type(e).__name__}: {e}')
  return compare(case, expected)


def drawn(seed, control_flow, wide=WIDE):
  """The program of a seed and what is wrong with it."""
  case = Case(seed, control_flow, wide)
  while True:
    try:
      expected = case.expected()
    except Exception as e:  # pylint: disable=broad-except
      return case, Fault('oracle', f'{type(e).__name__}: {e}')
    if not case.differentiable or case.attempt == MOST_ATTEMPTS or any(
        np.any(g) for g in expected[1]):
      return case, compare(case, expected)
    case = case.again(control_flow, wide)


def refusal(case):
  """The error that tracing the program ends in, if it does."""
  fun = sharded(case.program, case.sizes, case.want_axes, [], case.layout)
  loss = OUTER[case.outer](
      lambda *args: (lambda outs: (weighted(outs), outs))(fun(*args)))
  try:
    jax.eval_shape(case.transform(loss), *case.args)
  except Exception as e:  # pylint: disable=broad-except
    return Fault('refused', f'{type(e).__name__}: {e}')
  return None


def compare(case, expected):
  """The fault, given what the emulation says, if it says anything."""
  fault = difference(case, expected)
  if fault and fault.kind in ('unsound', 'wrong value') and mistakes_axes(case):
    return Fault('oracle', 'vmap of vmap of a loop that writes to a ref')
  return fault


def mistakes_axes(case):
  """True if the emulation may have exchanged two axes.

  Under a vmap of a vmap, of which the inner one alone maps over a while loop's
  predicate, JAX (0.10 to 0.12, no shard_map about) gives what the loop writes
  to a ref transposed.
  """
  return any(
      0 < len(s.predicate) < len(AXES) or s.predicate and 'vmap' in case.outer
      for s in statements_of(case.program) if hasattr(s, 'predicate'))


def difference(case, expected):
  """The difference from what the emulation says."""
  want_axes, args, types = case.want_axes, case.args, []
  (_, stacked), want_grads = expected
  fun = sharded(case.program, case.sizes, want_axes, types, case.layout)
  loss = OUTER[case.outer](
      lambda *args: (lambda outs: (weighted(outs), outs))(fun(*args)))
  try:
    (value, outs), grads = case.transform(loss)(*args)
  except Exception as e:  # pylint: disable=broad-except
    # Upstream has no vmap of it at all, or no gradient of a vmap of a
    # custom_jvp of a switch, in shard_map or not.
    if 'Batching rule for' in str(e) or "'stop_gradient' not impl" in str(e):
      return Fault('oracle', f'{type(e).__name__}: {e}')
    # Nor of a cast to reduced, nor of a sum of what is unreduced, which it says
    # without a word. Jacobians map such a sum, too.
    text = case.outer + source_of(case.program)
    if (isinstance(e, NotImplementedError) and not str(e)
        and 'reduced(' in text and ('vmap' in text or 'jac' in text)):
      return Fault('oracle', 'vmap of reduced or unreduced values')
    return Fault('refused', f'{type(e).__name__}: {e}')
  for i, (axes, want) in enumerate(zip(types[0], want_axes)):
    fault = oracle.fault_of_type(axes, want, stacked[i])
    if fault:
      return Fault(fault[0], f'result {i} {fault[1]}')
    if not np.allclose(outs[i], oracle.pick(stacked[i], want), 1e-3, 1e-4,
                       equal_nan=True):
      return Fault('wrong value', f'result {i} is {outs[i]}, not {stacked[i]}')
  for name, got, want in zip(INPUTS, grads, want_grads):
    if not np.allclose(got, want, 1e-2, 1e-3, equal_nan=True):
      return Fault('wrong gradient', f'that of {name} is {got}, not {want}')
  if fuzz_checked.wanted(case.seed):
    found = fuzz_checked.fault(case.transform(loss), args,
                               ((value, outs), grads))
    return found and Fault(*found)
  return None
