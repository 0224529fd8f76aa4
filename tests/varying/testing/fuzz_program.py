# SPDX-License-Identifier: Apache-2.0
"""What a random program is: statements, their source, along what they vary.

Each statement gives its lines of source, and by ``solve`` the axes along which
what it makes may vary at most: the rules of issue 3, worked out on the tree.
"""
import dataclasses
import re

from varying.testing.fuzz_ways import CLOSED_WAYS
from varying.testing.fuzz_ways import REMAT_WAYS
from varying.testing.fuzz_ways import WAYS

AXES = ('x', 'y')
ALL = frozenset(AXES)
INPUTS = {'a': frozenset('x'), 'b': frozenset('y'), 'c': ALL,
          'w': frozenset(), 'v': frozenset()}
MEET = '!'  # in an env: axes along which devices may have diverged
ONES = '1'  # in an env: axes of size 1, along which none can
NONE = frozenset()
MEETING = ('psum', 'pmean', 'psum_scatter', 'all_gather', 'all_to_all',
           'pswapaxes', 'ppermute', 'pshuffle', 'pmax', 'pmin')


def union(sets):
  return NONE.union(*sets)


def tuple_of(names):
  return ', '.join(names) + (',' if len(names) == 1 else '')


def indented(lines):
  return ['  ' + line for line in lines]


def blocks_of(statement):
  """The functions that a statement has in it."""
  one = getattr(statement, 'block', None)
  return getattr(statement, 'blocks', [one] if one else [])


def statements_of(block):
  """All statements of a block, and of those within."""
  for statement in block.body:
    yield statement
    for inner in blocks_of(statement):
      yield from statements_of(inner)


@dataclasses.dataclass
class Op:
  """``out = template(args)``; a collective or index changes the axes."""
  out: str
  template: str
  args: list
  adds: frozenset = NONE
  removes: frozenset = NONE

  @property
  def outs(self):
    return [self.out]

  def lines(self):
    return [f'{self.out} = ' + self.template.format(*self.args)]

  def solve(self, env):
    axes = self.adds.union(*(env[a] for a in self.args)) - self.removes
    env[self.out] = axes


@dataclasses.dataclass
class Block:
  """A function that is nested in the program and reads what is around it."""
  params: list
  body: list
  results: list

  def lines(self, name, ignored=()):
    params = ', '.join([*ignored, *self.params])
    text = [line for s in self.body for line in s.lines()]
    text.append('return ' + tuple_of(self.results))
    return [f'def {name}({params}):'] + indented(text)

  def solve(self, env, axes, parted=NONE):
    env = {**env, **dict(zip(self.params, axes))}
    env[MEET] = env.get(MEET, NONE) | parted
    for s in self.body:
      s.solve(env)
    return [env[r] for r in self.results]

  def forwarded(self, operands):
    """For each result, the name outside that it is, if it is one."""
    made = {n for s in self.body for n in s.outs}
    names = dict(zip(self.params, operands))
    return [None if r in made else names.get(r, r) for r in self.results]


@dataclasses.dataclass
class Branch:
  """``cond`` or ``switch`` on a number made from one of the names.

  Or on what a collective makes of the name, the text ``same``: that is the same
  along ``agrees``, whatever its type says.
  """
  outs: list
  index: str
  operands: list
  blocks: list
  kind: str
  same: str = ''
  agrees: frozenset = NONE

  def lines(self):
    names = [f'{self.outs[0]}_branch{i}' for i in range(len(self.blocks))]
    text = [line for n, b in zip(names, self.blocks) for line in b.lines(n)]
    operands = ', '.join(self.operands)
    index = self.same.format(self.index) if self.same else self.index
    call = self.choice(index, names)
    return text + [f'{tuple_of(self.outs)} = {call}, {operands})']

  def choice(self, index, names):
    """The text that chooses a branch, up to the operands."""
    if self.kind == 'cond':
      return f'lax.cond(jnp.sum({index}) > .4, {", ".join(names)}'
    if self.kind == 'key':
      return (f'lax.cond(jax.random.bernoulli(jax.random.fold_in('
              f'jax.random.key(1), jnp.argmax({index}))), {", ".join(names)}')
    return (f'lax.switch(jnp.sum({index} * 3).astype("i") % {len(names)}, '
            f'[{", ".join(names)}]')

  def solve(self, env):
    index = env[self.index] - self.agrees - env.get(ONES, NONE)
    outs = [b.solve(env, [env[o] for o in self.operands], index)
            for b in self.blocks]
    forwarded = zip(*(b.forwarded(self.operands) for b in self.blocks))
    for name, each, names in zip(self.outs, zip(*outs), forwarded):
      same = names[0] is not None and len(set(names)) == 1
      env[name] = env[names[0]] if same else index.union(*each)


@dataclasses.dataclass
class PassedBranch(Branch):
  """A branch in a function whose index is passed to it, as ``call`` says.

  The index agrees, and its type varies over both axes: so does the result's,
  but a collective in a branch is met by all.
  """
  call: str = ''

  def lines(self):
    name = f'{self.outs[0]}_fun'
    names = [f'{self.outs[0]}_branch{i}' for i in range(len(self.blocks))]
    text = [line for n, b in zip(names, self.blocks) for line in b.lines(n)]
    call = CALL_TEXTS[self.call].format(
        self.same.format(self.index), *self.operands, f=name)
    return text + [f'def {name}(p, q):',
                   f'  return {self.choice("p", names)}, q)',
                   f'{tuple_of(self.outs)} = {call}']

  def solve(self, env):
    parted = env[self.index] - self.agrees - env.get(ONES, NONE)
    for b in self.blocks:
      b.solve(env, [ALL], parted)
    env.update({name: ALL for name in self.outs})


@dataclasses.dataclass
class Loop:
  """A loop with two vectors and perhaps something else as its carries.

  A scan also stacks what its body returns last, and sums that up.
  """
  outs: list
  kind: str
  inits: list
  block: Block
  over: str = ''

  def lines(self):
    name = f'{self.outs[0]}_body'
    init, outs = tuple_of(self.inits), tuple_of(self.outs)
    text = self.block.lines(name)
    if self.kind.startswith('scan'):
      over, options = {
          'scan': (self.over, ''),
          'scan_xs': (self.over, ', reverse=True'),
          'scan_length': ('None', ', length=2'),
          'scan_unrolled': (self.over, ', unroll=2'),
          'scan_never': ('jnp.zeros((0, 2))', ''),
      }[self.kind]
      first = 'c[0] + s' if self.kind == 'scan_xs' else 'c[0]'
      return text + [
          f'def {name}_step(c, s):',
          f'  *c, y = {name}({first}, *c[1:])',
          '  return tuple(c), y',
          f'({tuple_of(self.outs[:-1])}), {self.outs[-1]} = lax.scan('
          f'{name}_step, ({init}), {over}{options})',
          f'{self.outs[-1]} = {self.outs[-1]}.sum(0) * .3']
    call = f'lambda i, c: {name}(*c), ({init})'
    if self.kind == 'fori':
      return text + [f'{outs} = lax.fori_loop(0, 2, {call})']
    if self.kind == 'fori_dynamic':
      return text + [
          f'{outs} = lax.fori_loop(0, 1 + jnp.heaviside('
          f'jnp.sum({self.over}), 0.).astype("i"), {call})']
    if self.kind == 'fori_same':
      return text + [
          f'{outs} = lax.fori_loop(0, 1 + jnp.heaviside(jnp.max(lax.all_gather('
          f"meet({self.over}), 'x')), 0.).astype(\"i\"), {call})"]
    if self.kind == 'fori_from':
      return text + [
          f'{outs} = lax.fori_loop(jnp.argmax({self.over}), 2, {call})']
    test = {'while': 'jnp.sum(c[1][0]) < 2.',
            'while_never': 'jnp.sum(c[1][0]) > 1e5',
            'while_both': 'jnp.all(c[1][0] + c[1][1] < 2.)',
            'while_pmax': "lax.pmax(jnp.sum(c[1][0]), ('x', 'y')) < 2.",
            'while_psum': "lax.psum(jnp.sum(c[1][0]), 'x') < 2.",
            'while_same': ("jnp.max(lax.all_gather(meet(jnp.sum(c[1][0])), "
                           "'x')) < 2.")}
    return text + [
        f'_, ({outs}) = lax.while_loop(lambda c: (c[0] < 3) & '
        f'({test[self.kind]}), lambda c: (c[0] + 1, {name}(*c[1])), '
        f'(0, ({init})))']

  def solve(self, env):
    carries = [env[i] for i in self.inits]
    changed = [r != p for r, p in zip(self.block.results, self.block.params)]
    stacks = self.kind.startswith('scan')
    while True:
      ins = list(carries)
      predicate = NONE
      if self.kind == 'scan_xs':
        ins[0] = ins[0] | env[self.over]
        changed[0] = True
      elif self.kind in ('fori_dynamic', 'fori_from'):
        predicate = env[self.over]
      elif self.kind == 'fori_same':
        predicate = env[self.over] - {'x'}
      elif self.kind in ('while', 'while_never'):
        predicate = carries[0]
      elif self.kind == 'while_both':
        predicate = carries[0] | carries[1]
      elif self.kind in ('while_psum', 'while_same'):
        predicate = carries[0] - {'x'}
      predicate -= env.get(ONES, NONE)
      outs = self.block.solve(env, ins, predicate)
      new = [c | o | (predicate if ch else NONE)
             for c, o, ch in zip(carries, outs, changed)]
      if new == carries:
        break
      carries = new
    env.update(zip(self.outs, carries + outs[-1:] if stacks else carries))


def cast_by_hand(block):
  """Casts what branches return, and what loops take and return, all through.

  Upstream asks for these casts, and accepts most programs that have them.
  """
  body = []
  for statement in block.body:
    inner = blocks_of(statement)
    for each in inner:
      cast_by_hand(each)
    if isinstance(statement, (Branch, Loop)):
      for each in inner:
        made, each.results = _cast(each.results, f'{statement.outs[0]}_out')
        each.body += made
    if isinstance(statement, Loop):
      made, statement.inits = _cast(statement.inits, f'{statement.outs[0]}_in')
      body += made
    body.append(statement)
  block.body = body


def _cast(names, prefix):
  new = [f'{prefix}{i}' for i in range(len(names))]
  return [Op(n, 'vary({0})', [name], ALL)
          for n, name in zip(new, names)], new


@dataclasses.dataclass
class RefLoop(Loop):
  """A loop whose first carry is the content of a ref from before the loop.

  Its ``predicate``, once solved, is what the choice of another trip varies
  along, axes of one device included.
  """

  def lines(self):
    ref, name = f'{self.outs[0]}_ref', f'{self.outs[0]}_body'
    content, carry = self.outs
    text = self.block.lines(name) + [
        f'{ref} = new_ref({self.inits[0]})',
        f'def {name}_step(c):',
        f'  {ref}[...], d = {name}({ref}[...], c)',
        '  return d']
    loop = {
        'ref_fori': (f'{carry} = lax.fori_loop(0, 2, lambda i, c: '
                     f'{name}_step(c), {self.inits[1]})'),
        'ref_scan': (f'{carry}, _ = lax.scan(lambda c, s: ({name}_step(c + s), '
                     f'None), {self.inits[1]}, {self.over})'),
        'ref_while': (f'_, {carry} = lax.while_loop(lambda c: (c[0] < 3) & '
                      '(jnp.sum(c[1]) < 2.), lambda c: (c[0] + 1, '
                      f'{name}_step(c[1])), (0, {self.inits[1]}))'),
    }[self.kind]
    return text + [loop, f'{content} = {ref}[...]']

  def solve(self, env):
    inits = [env[i] for i in self.inits]
    changed = self.block.results[1] != self.block.params[1]
    if self.kind == 'ref_scan':
      inits[1] = inits[1] | env[self.over]
    content, carry = inits
    while True:
      predicate = NONE
      if self.kind == 'ref_while':
        predicate = carry - env.get(ONES, NONE)
      made = self.block.solve(env, [content, carry], predicate)
      new = (content | made[0] | predicate,
             carry | made[1] | (predicate if changed else NONE))
      if new == (content, carry):
        break
      content, carry = new
    self.predicate = carry if self.kind == 'ref_while' else NONE
    env.update(zip(self.outs, new))


# By kind: how a function of a carry that writes to a ref is called.
REF_CALLS = {
    'ref_jit': 'jax.jit({f})({0})',
    'ref_remat': 'jax.checkpoint({f})({0})',
    'ref_map': 'lax.map({f}, jnp.stack([{0}, {0} * .5])).sum(0)',
    'ref_held': '{f}({0})',
    'ref_vmap': 'jax.vmap({f}, (0, 0))(jnp.stack([{0}, {0} * .5]), {ref})'
                '.sum(0)',
}


@dataclasses.dataclass
class RefCall(RefLoop):
  """A call that writes to a ref which others hold by other names.

  They hold it in a tree, or as a batching tracer does. In a jaxpr of its own a
  ref has one type, that of all that is written to it; in a straight line, what
  was read before keeps that of then.
  """

  def lines(self):
    ref, name = f'{self.outs[0]}_ref', f'{self.outs[0]}_body'
    content, carry = self.outs
    call = REF_CALLS[self.kind].format(self.inits[1], f=f'{name}_step', ref=ref)
    if self.kind == 'ref_vmap':
      start = f'jnp.stack([{self.inits[0]}, {self.inits[0]} * .5])'
      params, held, end = 'c, r', 'r', f'{ref}[...].sum(0)'
    else:
      start, params, held = self.inits[0], 'c', f'{ref}_held["r"][0]'
      end = f'{ref}[...] + {held}[...] * .5'
    return self.block.lines(name) + [
        f'{ref} = new_ref({start})',
        f'{ref}_held = dict(r=[{ref}])',
        f'def {name}_step({params}):',
        f'  {held}[...], d = {name}({held}[...], c)',
        '  return d',
        f'{carry} = {call}',
        f'{content} = {end}']

  def solve(self, env):
    content, carry = [env[i] for i in self.inits]
    while True:
      made = self.block.solve(env, [content, carry])
      grown = content | made[0]
      if grown == content or self.kind in ('ref_held', 'ref_vmap'):
        break
      content = grown
    env.update(zip(self.outs, [grown, made[1]]))


CALLS = {  # by kind: how to call F with two operands; {p} is where a vmap goes
    'jit': 'jax.jit({f})({0}, {1})',
    'remat': 'jax.checkpoint({f})({0}, {1})',
    'remat_nothing': ('jax.checkpoint({f}, policy=jax.checkpoint_policies.'
                      'nothing_saveable)({0}, {1})'),
    'remat_dots': ('jax.checkpoint({f}, policy=jax.checkpoint_policies.'
                   'dots_saveable)({0}, {1})'),
    'remat_all': ('jax.checkpoint({f}, policy=jax.checkpoint_policies.'
                  'everything_saveable)({0}, {1})'),
    'closure': ('(lambda made: made[0]({0}, *made[1]))(jax.closure_convert('
                'lambda u: {f}(u, {1}), {0}))'),
    'vmap': ('[z.sum(0) for z in jax.vmap({f}, (0, None))('
             'jnp.stack([{0}, {0} * .5]), {1})]'),
    'vmap_both': ('[z[0] - z[1] for z in jax.vmap({f}, (0, 0))('
                  'jnp.stack([{0}, {0} * .5]), jnp.stack([{1}, .3 * {1}]))]'),
    'vmap_out': ('[z[:, 1] for z in jax.vmap({f}, (1, None), 1)('
                 'jnp.stack([{0}, {0} * .5], 1), {1})]'),
    'map': ('[z[0] + z[1] for z in lax.map(lambda u: {f}(u, {1}), '
            'jnp.stack([{0}, {0} * .5]))]'),
    'map_batch': ('[z[0] - z[1] for z in lax.map(lambda u: {f}(u, {1}), '
                  'jnp.stack([{0}, {0} * .5]), batch_size=2)]'),
    'named': 'jax.named_call({f}, name="n")({0}, {1})',
    'jaxpr': ('(lambda made: jax.core.eval_jaxpr(made.jaxpr, made.consts, '
              '{0}, {1}))(jax.make_jaxpr({f})({0}, {1}))'),
    'checkify': 'checkify.checkify({f})({0}, {1})[1]',
    **WAYS,
    **REMAT_WAYS,
}
WIDER_CALLS = {  # what was traced with constants, applied to what may vary
    'closure_wider': ('(lambda made: made[0]({0}, *made[1]))('
                      'jax.closure_convert(lambda u: {f}(u, {1}), '
                      'jnp.full(3, .4)))'),
    'jaxpr_wider': ('jax.extend.core.jaxpr_as_fun(jax.make_jaxpr({f})('
                    'jnp.full(3, .4), jnp.full(3, .2)))({0}, {1})'),
}
OPAQUE_CALLS = {  # of a closed function, and without a derivative
    'custom_vmap': ('opaque(jax.custom_batching.sequential_vmap, {f})'
                    '({0}, {1})'),
    'composite': ('opaque(lambda f: lax.composite(f, "fuzz.op"), {f})'
                  '({0}, {1})'),
}
CLOSED_CALLS = {  # of a function that reads nothing but its arguments
    'custom_jvp': ('custom(jax.custom_jvp, {f}, '
                   'lambda p, t: jax.jvp({f}, p, t))({0}, {1})'),
    'custom_vjp': ('custom(jax.custom_vjp, {f}, lambda *p: ({f}(*p), p), '
                   'lambda r, t: jax.vjp({f}, *r)[1](t))({0}, {1})'),
    'custom_vjp_lazy': ('custom(jax.custom_vjp, {f}, '
                        'lambda *p: jax.vjp({f}, *p), '
                        'lambda r, t: r(t))({0}, {1})'),
    **CLOSED_WAYS,
}
FORWARD_CALLS = {  # forward derivatives of F, whose operands are alike
    'jvp': ('[z + .5 * t for z, t in zip(*jax.jvp({f}, ({0}, {1}), '
            '({1}, .5 * {0})))]'),
    'jvp_constant': ('[z + .5 * t for z, t in zip(*jax.jvp('
                     'lambda u: {f}(u, {1}), ({0},), (jnp.ones(3),)))]'),
    'linearize': ('(lambda l: [z + t for z, t in zip(l[0], l[1]({0}, {1}))])'
                  '(jax.linearize({f}, {0}, {1}))'),
    'jacfwd': '[z.sum(0) for z in jax.jacfwd(lambda u: {f}(u, {1}))({0})]',
}
CALL_TEXTS = {**CALLS, **CLOSED_CALLS, **FORWARD_CALLS, **WIDER_CALLS,
              **OPAQUE_CALLS}


@dataclasses.dataclass
class Call:
  """A function under a transformation that leaves types as they are."""
  outs: list
  kind: str
  operands: list
  block: Block

  def lines(self):
    name = f'{self.outs[0]}_fun'
    call = CALL_TEXTS[self.kind].format(*self.operands, f=name)
    return self.block.lines(name) + [f'{tuple_of(self.outs)} = {call}']

  def solve(self, env):
    axes = [env[o] for o in self.operands]
    if self.kind == 'jvp':
      axes = [union(axes)] * 2
    env.update(zip(self.outs, self.block.solve(env, axes)))


GRADIENTS = {
    'grad': 'jax.grad(lambda u: jnp.sum({f}(u, {1})[0]))({0})',
    'value_and_grad': ('jax.value_and_grad(lambda u: (jnp.sum({f}(u, {1})[0]), '
                       'u), has_aux=True)({0})[1]'),
    'jit_grad': 'jax.jit(jax.grad(lambda u: jnp.sum({f}(u, {1})[0])))({0})',
    'vjp': 'jax.vjp(lambda u: {f}(u, {1}), {0})[1]((jnp.full(3, .5),))[0]',
    'jacrev': 'jax.jacrev(lambda u: {f}(u, {1})[0])({0}).sum(0)',
    'remat_grad': ('jax.grad(jax.checkpoint(lambda u: jnp.sum('
                   '{f}(u, {1})[0])))({0})'),
    'grad_vmap': ('jax.vmap(jax.grad(lambda u: jnp.sum({f}(u, {1})[0])))('
                  'jnp.stack([{0}, {0} * .5])).sum(0)'),
    'hvp': ('jax.jvp(jax.grad(lambda u: jnp.sum({f}(u, {1})[0])), ({0},), '
            '(jnp.ones(3),))[1]'),
    'hessian': ('jax.hessian(lambda u: jnp.sum({f}(u, {1})[0]))({0})'
                '.sum(0)'),
}


@dataclasses.dataclass
class Gradient:
  """The gradient of a function's one result in its first operand.

  It has the type of the operand, and is summed over what the result varies
  along besides. Where devices have diverged, they can't sum, and the
  operand is made to vary first.

  The emulation knows no types. Its gradient is that of the sum of all devices'
  results, in one device's operand: a result that doesn't vary is counted
  ``shared`` times in it, and the parts of an operand that doesn't are ``sums``.
  """
  outs: list
  kind: str
  operands: list
  block: Block
  sums: frozenset = NONE
  shared: frozenset = NONE
  varied: bool = False

  def lines(self):
    name = f'{self.outs[0]}_fun'
    first, second = self.operands
    if self.varied:
      first = f'vary({first})'
    gradient = GRADIENTS[self.kind].format(first, second, f=name)
    return self.block.lines(name) + [
        f'{self.outs[0]} = total({gradient}, {tuple(sorted(self.sums))}, '
        f'{tuple(sorted(self.shared))})']

  def solve(self, env):
    first = ALL if self.varied else env[self.operands[0]]
    result, = self.block.solve(env, [first, env[self.operands[1]]])
    self.sums = result - first
    if self.sums & env[MEET] and not self.varied:
      self.varied = True
      return self.solve(env)
    # Where devices have diverged, no collective joins them inside.
    together = ALL - env[MEET]
    text = '\n'.join(self.block.lines('f'))
    if (any(f'lax.{c}' in text for c in MEETING)
        or re.search(r"total\(.*, \('", text)):  # a gradient that is summed
      self.sums |= (ALL - first) & together
      self.shared = (ALL - result) & together
    env[self.outs[0]] = first
