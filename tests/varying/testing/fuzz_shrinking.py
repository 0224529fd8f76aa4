# SPDX-License-Identifier: Apache-2.0
"""Makes a program that shows a fault smaller, and a file that shows it.

Candidates are smaller programs: with one result less, a statement less (what
used it reads another name), a statement's body in its place, or an operation
that is simpler. One that still shows the same kind of fault is gone on with.
Each step runs the program, or where it is refused while it is traced, traces
it; a limit of time ends this, and what is left is the smallest that was seen,
not the smallest that there is.
"""
import copy
import inspect
import re
import time

import numpy as np
from varying.testing import fuzz_outer
from varying.testing.fuzz_program import AXES
from varying.testing.fuzz_program import INPUTS
from varying.testing.fuzz_program import Op
from varying.testing.fuzz_program import blocks_of
from varying.testing.fuzz_running import THIRD
from varying.testing.fuzz_running import fault_of
from varying.testing.fuzz_running import refusal
from varying.testing.fuzz_running import source_of

SIMPLE = '{0} * .5'
_NAME = re.compile(r'\bt\d+\b|\b[abcwv]\b')


def rename(node, names):
  """Reads of ``names`` become reads of what they stand for, also inside."""
  new = lambda name: names.get(name, name)
  for field in ('args', 'operands', 'inits', 'results'):
    if hasattr(node, field):
      setattr(node, field, [new(n) for n in getattr(node, field)])
  for field in ('index', 'over'):
    if hasattr(node, field):
      setattr(node, field, new(getattr(node, field)))
  for part in (*getattr(node, 'body', ()), *blocks_of(node)):
    rename(part, names)


def pruned(block):
  """Removes what no result of the block needs; True if there was anything."""
  text = lambda s: ' '.join(s.lines())
  needed, kept = set(block.results), []
  for s in reversed(block.body):
    if needed & set(s.outs):
      kept.append(s)
      needed.update(_NAME.findall(text(s)))
  changed = len(kept) < len(block.body)
  block.body = kept[::-1]
  for s in block.body:
    for inner in blocks_of(s):
      changed |= pruned(inner)
  return changed


def places(block):
  """Each block of the program, as a path to be found in a copy of it."""
  yield ()
  for i, s in enumerate(block.body):
    for j, inner in enumerate(blocks_of(s)):
      for rest in places(inner):
        yield (i, j, *rest)


def at(block, path):
  while path:
    block, path = blocks_of(block.body[path[0]])[path[1]], path[2:]
  return block


def reading_of(s):
  """The names that a statement is given, the likeliest first."""
  read = [*getattr(s, 'operands', ()), *getattr(s, 'inits', ()),
          *getattr(s, 'args', ())]
  return [n for n in read if _NAME.fullmatch(n)] or ['w']


def smaller(program):
  """Candidates, the boldest first."""
  def changed(path, change):
    copied = copy.deepcopy(program)
    block = at(copied, path)
    if change(block) is False:
      return None
    pruned(copied)
    return copied

  def without(i):
    def change(block):
      s = block.body.pop(i)
      rename(block, {o: reading_of(s)[0] for o in s.outs})
    return change

  def in_its_place(i, j):
    def change(block):
      s = block.body[i]
      inner = blocks_of(s)[j]
      read = (reading_of(s) * 4)[:len(inner.params)]
      for part in inner.body:
        rename(part, dict(zip(inner.params, read)))
      names = dict(zip(inner.params, read))
      results = [names.get(r, r) for r in inner.results] or ['w']
      block.body[i:i + 1] = inner.body
      rename(block, {o: results[min(k, len(results) - 1)]
                     for k, o in enumerate(s.outs)})
    return change

  def simpler(i):
    def change(block):
      s = block.body[i]
      if not isinstance(s, Op) or s.template == SIMPLE or not s.args or (
          'lax.p' in s.template or 'meet' in s.template):
        return False
      block.body[i] = Op(s.out, SIMPLE, s.args[:1])
    return change

  def one_result(i):
    def change(block):
      block.results = [block.results[i]]
    return change

  if len(program.results) > 1:
    yield from (changed((), one_result(i))
                for i in range(len(program.results)))
  for path in places(program):
    block = at(program, path)
    for i, s in reversed(list(enumerate(block.body))):
      yield changed(path, without(i))
      for j in range(len(blocks_of(s))):
        yield changed(path, in_its_place(i, j))
  for path in places(program):
    yield from (changed(path, simpler(i))
                for i in range(len(at(program, path).body)))


def shrunk(case, fault, seconds=60.):
  """The smallest program that was found within that time to fail so."""
  end = time.monotonic() + seconds
  pruned(case.program)
  seen = {source_of(case.program)}
  look = fault_of
  if fault.kind == 'refused' and same(refusal(case), fault):
    look = refusal
  going_on = True
  while going_on:
    going_on = False
    for program in smaller(case.program):
      if time.monotonic() > end:
        return case, fault
      if program is None or source_of(program) in seen:
        continue
      seen.add(source_of(program))
      candidate = copy.copy(case)
      candidate.program = program
      try:
        candidate.solve()
        found = look(candidate)
      except Exception:  # pylint: disable=broad-except
        continue  # no program: a name is read that nothing makes
      if same(found, fault):
        case, fault, going_on = candidate, found, True
        break
  return case, fault


def same(found, fault):
  """True if two faults are of one kind; if refusals, of one wording."""
  words = lambda f: re.sub(r'[^A-Za-z ]', '', f.text)[:60]
  return found is not None and found.kind == fault.kind and (
      fault.kind != 'refused' or words(found) == words(fault))


RUN = r'''# {title}
import os
os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
{source}
try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map


def cast(x):
  if hasattr(x, 'rep'):
    axes = {{'x', 'y'}} - x.rep
  elif hasattr(x.aval, 'mat'):
    axes = {{'x', 'y'}} - x.aval.mat.varying
  else:
    axes = {{'x', 'y'}} - x.aval.vma
  if not axes:
    return x
  return (lax.pcast(x, tuple(axes), to='varying') if hasattr(lax, 'pcast')
          else lax.pvary(x, tuple(axes)))


def custom(kind, f, *rules):
  made = kind(f)
  (made.defjvp if kind is jax.custom_jvp else made.defvjp)(*rules)
  return made


def by_hand(x, axis):
  return (lax.pcast(x, axis, to='varying') if hasattr(lax, 'pcast')
          else lax.pvary(x, axis))


vary = lambda tree: jax.tree.map(lambda x: cast(jnp.asarray(x)), tree)
meet = lambda x: x
opaque = lambda kind, f: kind(f)
linear = lambda f, transpose, *args: jax.custom_derivatives.linear_call(
    f, transpose, *args)
along = {along}
reduced = lambda x: lax.pcast(x, ('x', 'y'), to='reduced')
unreduced = lambda x, axis: lax.pcast(
    x if axis in x.aval.mat.varying else by_hand(x, axis), axis, to='unreduced')
total = lambda g, *_: g
new_ref = getattr(jax, 'new_ref', None)
mesh = {mesh}
per_device = lambda *args: tuple(
    o.reshape((1,) * n + (3,)) for o, n in zip(
        body(*(x.reshape(3) for x in args)), {ranks}))
{wrapped}


def emulate(args, vary=lambda x: x, new_ref=new_ref):
  """Each device's results, by vmap."""
  index = lambda: lax.axis_index('x') + lax.axis_index('y')
  scope = dict(
      globals(), vary=vary, meet=lambda x: x + 0. * index(),
      new_ref=lambda x: new_ref(x + 0. * index()),
      custom=lambda kind, f, *rules: f, opaque=lambda kind, f: f,
      linear=lambda f, transpose, r, x: f(r, x), reduced=lambda x: x,
      unreduced=lambda x, axis: x,
      by_hand=lambda x, axis: x, along=lambda x: x,
      total=lambda g, sums, shared: (lax.psum(g, sums) if sums else g) / (
          lax.psum(1, shared) if shared else 1))
  exec(SOURCE, scope)
  return jax.vmap(jax.vmap(scope['body'], {ins_y}, axis_name='y', axis_size={y}
                           ), {ins_x}, axis_name='x', axis_size={x})(*args)


def picked(outs):
  return [o[tuple(slice(None) if a in axes else 0 for a in 'xy')]
          for o, axes in zip(outs, {out_axes})]


{outer}

def loss(outs):
  return sum(jnp.sum(o * jnp.linspace(1., 2., o.size).reshape(o.shape))
             for o in outs)


args = list(map(np.float32, {args}))
around = OUTER['{around}']
emulated = around(lambda *a: (lambda o: (loss(o), o))(picked(emulate(a))))
mapped = around(lambda *a: (lambda o: (loss(o), o))(f(*a)))
print('emulated', jax.jit(emulated)(*args))
print('shard_map', jax.jit(mapped)(*args))
if {differentiable}:  # found by: {mode}
  print('emulated gradients', jax.jit(jax.grad(
      emulated, range(5), has_aux=True))(*args)[0])
  print('gradients', jax.jit(jax.grad(
      mapped, range(5), has_aux=True))(*args)[0])
'''
PLAIN = "Mesh(np.array(jax.devices()[:{count}]).reshape{sizes}, ('x', 'y'))"
WITH_THIRD = '''Mesh(
    np.array(jax.devices()[:2 * {count}]).reshape(*{sizes}, 2),
    ('x', 'y', 'z'), axis_types=tuple(
        getattr(jax.sharding.AxisType, kind)
        for kind in ('Auto', 'Auto', '{third}')))'''
FLAT = '''f = shard_map(
    per_device, mesh=mesh, in_specs={ins}, out_specs={outs})'''
KEYWORDS = '''g = shard_map(
    lambda a, b, c, w, v: per_device(a, b, c, w, v), mesh=mesh, in_specs={ins},
    out_specs={outs})
f = lambda a, b, c, w, v: g(a, b, v=v, w=w, c=c)'''
PARTLY = '''f = shard_map(
    per_device, mesh=mesh, axis_names={{'x', 'y'}}, in_specs={ins},
    out_specs={outs})'''
NESTED = '''f = shard_map(
    lambda *args: shard_map(per_device, axis_names={{'y'}}, in_specs={ins_in},
                            out_specs={outs_in})(*args),
    mesh=mesh, axis_names={{'x'}}, in_specs={ins}, out_specs={outs})'''


def specs(all_axes, manual=AXES):
  spec = lambda axes: 'P(' + ', '.join(
      repr(a if a in manual else None) for a in AXES if a in axes) + ')'
  return '(' + ', '.join(map(spec, all_axes)) + ',)'


def report(case, fault):
  """A file to run: the program, its arguments, what is wrong with it."""
  ins, outs = list(INPUTS.values()), case.want_axes
  manual = 'x' if case.layout == 'nested' else AXES
  wrapped = {'flat': FLAT, 'nested': NESTED, 'keywords': KEYWORDS}.get(
      case.layout, PARTLY).format(
      ins=specs(ins, manual), outs=specs(outs, manual),
      ins_in=specs(ins, 'y'), outs_in=specs(outs, 'y'))
  source = source_of(case.program)
  mapped = lambda axis: tuple(0 if axis in axes else None for axes in ins)
  text = RUN.format(
      title='\n# '.join(f'Seed {case.seed}: {fault}'[:2000].splitlines()),
      source=f"SOURCE = \'\'\'\n{source}\n\'\'\'\nexec(SOURCE)",
      mesh=(WITH_THIRD if case.layout in THIRD else PLAIN).format(
          count=int(np.prod(case.sizes)), sizes=case.sizes,
          third=THIRD.get(case.layout)), wrapped=wrapped,
      along=('lambda x: lax.with_sharding_constraint(x, P("z"))'
             if case.layout == 'auto' else 'lambda x: x'),
      ranks=[len(a) for a in outs], ins_x=mapped('x'), ins_y=mapped('y'),
      x=case.sizes[0], y=case.sizes[1],
      out_axes=[''.join(sorted(a)) for a in outs],
      args=[np.round(x, 3).tolist() for x in case.args], mode=case.mode,
      differentiable=case.differentiable, around=case.outer,
      outer=inspect.getsource(fuzz_outer))
  return text
