# SPDX-License-Identifier: Apache-2.0
"""jax.debug.show_varying: a program's lines, with what their values vary over.

Lines are found by the comments at their ends. What they vary over is known by
the semantics of each operation, and by hand.
"""
import contextlib
import html.parser
import io
import os
import re

from absl.testing import parameterized
from sanitizer.testing.apart import mapped, XY
from sanitizer.testing.pages import run_docstrings
from sanitizer.testing.replicated import RIGHT, rows
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import (
    eight_devices, partly_manual, typed_mesh, UNCHECKED)

jax.config.parse_flags_with_absl()
eight_devices()

HAS_TYPES = hasattr(jax, 'typeof')  # and so casts that are the user's
NOT_THERE = (r"^AttributeError: module 'jax\.debug' has no attribute "
             "'show_varying'")


def own_cast(x):
  if hasattr(lax, 'pcast'):
    return lax.pcast(x, 'x', to='varying')  # own
  return lax.pvary(x, 'x') if hasattr(lax, 'pvary') else x  # own, older


class Table(html.parser.HTMLParser):
  """The rows of a page's tables, and what it would load."""
  VOID = ('meta', 'br')

  def __init__(self, page):
    super().__init__()
    self.open, self.rows, self.loads = [], [], []
    self.feed(page)
    self.close()

  def handle_starttag(self, tag, attrs):
    if tag not in self.VOID:
      self.open.append(tag)
    names = dict(attrs)
    self.loads += [v for k, v in attrs if k in ('src', 'href', 'onload')]
    if tag == 'script' or tag == 'link':
      self.loads.append(tag)
    if tag == 'tr':
      self.rows.append((names.get('class', ''), []))
    elif tag == 'td':
      self.rows[-1][1].append('')

  def handle_endtag(self, tag):
    assert self.open.pop() == tag, tag

  def handle_data(self, data):
    if 'td' in self.open:
      self.rows[-1][1][-1] += data


def lines_of(shown):
  """What is in the column of each line, and said below it, by its comment."""
  found, below = {}, []
  for line in str(shown).splitlines():
    row = re.match(r' *\d+  (.*?)  +\S.*# ([\w ,]+)$', line)
    if row:
      below = []
      found[row[2]] = row[1], below
    elif re.match(r' *\d+ ', line):
      below = []
    elif line.lstrip().startswith('^ '):
      below.append(line.lstrip()[2:])
  return found


@red(NOT_THERE, bases='<0.6', api_missing=True, also='replication')
@red(NOT_THERE, bases='>=0.6', api_missing=True)
@jtu.with_config(jax_numpy_rank_promotion='allow',
                 jax_numpy_dtype_promotion='standard')
class ShowVaryingTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), XY)

  def shown(self, f, *args):
    show = jax.debug.show_varying
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      got = show(f)(*args)
    self.assertEqual(printed.getvalue(), f'{got}\n')
    return got

  def lines(self, f, *args):
    return lines_of(self.shown(f, *args))

  @parameterized.product(jit=[False, True], shape=[(4,), (2, 2), (4, 1)])
  def test_lines(self, jit, shape):
    show = jax.debug.show_varying
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(shape), XY[:len(shape)])
    rest = (lambda x: lax.psum(x, 'y')) if len(shape) > 1 else lambda x: x
    def f(w, a):
      b = w * 2  # scaled
      c = a + b  # added
      i = lax.axis_index('x')  # index
      d = jnp.sin(c).sum() + i  # summed
      e = lax.psum(d, 'x')  # reduced
      e = rest(e)
      return e * 2  # result
    f = mapped(f, mesh, (P(), P(*mesh.axis_names)))
    f = jax.jit(f) if jit else f
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      show(f)(jnp.ones(1), jnp.ones(shape + (1,)))
    got = {k: v for k, (v, _) in lines_of(printed.getvalue()).items()}
    every = ', '.join(mesh.axis_names)
    self.assertEqual(got, {
        'scaled': 'same', 'added': every, 'index': 'x', 'summed': every,
        'reduced': 'y' if len(shape) > 1 else 'same', 'result': 'same'})
    self.assertIn(f"'x': {shape[0]}", printed.getvalue())
    self.assertRegex(printed.getvalue(), r'w: float32\[1\] is the same on all')

  def test_casts_and_whose_they_are(self):
    def f(w, a):
      y = w * a  # product
      z = own_cast(w)  # called
      return lax.psum(y.sum() + z.sum(), 'x')
    got = self.lines(mapped(f, self.mesh, (P(), P('x'))), jnp.ones(4), rows())
    said, = got['product'][1]
    self.assertRegex(said, r"^float32\[.*4\] cast to vary over 'x': `mul` "
                     'takes operands that vary alike, and another varies over '
                     r"'x'$")
    own = [got[n] for n in ('own', 'own, older') if got.get(n, [''])[0]]
    cast = ('x', ["float32[4] cast to vary over 'x': your own cast"])
    self.assertEqual(own, [cast] if hasattr(lax, 'pvary') or hasattr(
        lax, 'pcast') else [])

  def test_casts_under_vmap(self):
    # What moves the batch to the front reads no value.
    def f(w, a):
      y = jax.vmap(lambda w, a: w * a, in_axes=(1, 0))(w, a)  # moved
      z = jax.vmap(lambda w, a: w[0] * a, in_axes=(1, 0))(w, a)  # spread
      return lax.psum(y.sum() + z.sum(), XY)
    got = self.lines(mapped(f, self.mesh, (P(), P(*XY))), jnp.ones((2, 2)),
                     rows())
    for name in ('moved', 'spread'):
      said, = got[name][1]
      self.assertIn('`mul` takes operands that vary alike', said)

  def test_a_carry_that_the_body_makes_the_same(self):
    def f(w, a):
      def body(c, x):
        return w.sum(), c * x  # body
      c, ys = lax.scan(body, a.sum(), a.sum(0))  # loop
      return lax.psum(c + ys.sum(), XY)
    got = self.lines(mapped(f, self.mesh, (P(), P(*XY))), jnp.ones(2), rows())
    said, = got['body'][1] + got['loop'][1]
    self.assertEndsWith(said, "cast to vary over 'x', 'y': a carry of the loop,"
                        ' which varies there at its start or elsewhere')

  def test_what_is_kept_for_a_gradient_is_on_no_line(self):
    # Up to 0.6.0 a scalar is put into an array, and taken out of it.
    loss = lambda w, a: lax.psum((jnp.sin(w.sum()) * a).sum(), XY)
    got = self.shown(jax.grad(mapped(loss, self.mesh, (P(), P(*XY)))),
                     jnp.ones(2), rows())
    self.assertNotIn('show(f)', str(got))

  @red(r"^ModuleNotFoundError: No module named 'jax\._src\.sanitizer'",
       api_missing=True)
  def test_colours_of_axes_differ(self):
    from jax._src.sanitizer import pictures
    self.assertLen(set(pictures._COLOURS), 6)

  def test_carries_at_their_fixpoint(self):
    def f(a):
      def step(c, x):
        u, v, n = c
        u = u + v  # first
        v = v * x.sum()  # second
        n = n + 1  # count
        return (u, v, n), None
      (u, v, n), _ = lax.scan(step, (0., 1., 0), a)  # loop
      return lax.psum(u + v + n, 'x')
    got = self.lines(mapped(f, self.mesh, P(None, 'x')), rows())
    self.assertEqual({k: got[k][0] for k in ('first', 'second', 'count')},
                     {'first': 'x', 'second': 'x', 'count': 'same'})
    self.assertEqual(got['loop'][0], 'x | same')
    self.assertLen(got['loop'][1], 2)
    for said in got['loop'][1]:
      self.assertRegex(
          said, r"^[01]\.0 cast to vary over 'x': a carry of the loop: it "
          r"starts the same, and varies over 'x' from the first round on, by "
          r'`.*x\.sum\(\).*` in line \d+$')

  def test_a_loop_whose_predicate_varies(self):
    def f(w):
      n, w = lax.while_loop(
          lambda c: c[0] < lax.axis_index('y'),
          lambda c: (c[0] + 1, c[1] * 2), (0, w))  # carry
      return lax.pmax(w * n, 'y')
    got = self.shown(mapped(f, self.mesh, P()), jnp.ones(3))
    self.assertRegex(
        str(got), r"float32\[3\] cast to vary over 'y': a carry of the while "
        "loop: its predicate varies over 'y': devices go round it a different "
        'number of times')

  def test_branches(self):
    def f(w, a):
      y = lax.cond(
          a.sum() > 1,
          lambda: w * 2,  # reads
          lambda: w * lax.axis_index('y'))  # varies
      return lax.psum(y, XY)
    got = self.shown(mapped(f, self.mesh, (P(), P('x'))), jnp.ones(3), rows())
    found = lines_of(got)
    self.assertEqual(found['reads'][0], 'x')
    self.assertEqual(found['varies'][0], 'x, y')
    self.assertIn("float32[3] cast to vary over 'x': a branch reads it, and "
                  "devices along 'x' choose differently: its gradient is "
                  'summed over all of them', str(got))
    self.assertIn("float32[3] cast to vary over 'y': the result of a branch: "
                  "another branch's varies over 'y'", str(got))

  # Up to 0.5.3 what is differentiated inside has no casts yet.
  @parameterized.parameters(
      'outside', 'jit', *['inside'] * (jax.__version_info__ >= (0, 6)))
  def test_sums_of_gradients(self, where):
    def loss(w, a):
      y = w * a  # product
      z = jnp.sin(y).sum()
      return z if where == 'inside' else lax.psum(z, XY)
    if where == 'inside':
      f = mapped(jax.grad(loss), self.mesh, (P(), P(*XY)))
    else:
      f = jax.grad(mapped(loss, self.mesh, (P(), P(*XY))))
      f = jax.jit(f) if where == 'jit' else f
    got = self.shown(f, jnp.ones(2), rows())
    product = lines_of(got)['product']
    self.assertEqual(product[0], 'x, y')
    sums = [s for s in product[1] if 'summed' in s]
    self.assertLen(sums, 1)
    self.assertRegex(sums[0], r"^float32\[.*2\] summed over 'x', 'y': the "
                     'gradient of the cast here: each device has its own part')
    self.assertIn('1 sums put in', repr(got))

  def test_own_sums_are_not_marked(self):
    def f(a):
      b = lax.psum(a, 'x')  # one
      return lax.pmean(b, 'y')  # two
    f = mapped(f, self.mesh, P(*XY))
    got = self.lines(f, rows())
    self.assertEqual(got, {'one': ('y', []), 'two': ('same', [])})

  @red(NOT_THERE, bases='>=0.6', api_missing=True, also='varying')
  @parameterized.parameters(False, True)
  def test_inferred_where_types_do_not_say(self, scanned):
    def f(w, a):
      b = w + lax.psum(a, 'x')  # reduced
      c, d = w * 0, b  # start
      if scanned:
        c, d = lax.scan(lambda c, x: (c + x, c), c, b)  # scanned
      double = lambda: c * 2
      e = lax.cond(lax.axis_index('x') == 1, lambda: c, double)  # parted
      g = lax.all_gather(e, 'x')  # gathered
      return lax.pmax(g, XY), d
    args = jnp.ones(2), rows()
    want = self.lines(mapped(f, self.mesh, (P(), P(*XY)), (P(), P(None, 'y'))),
                      *args)
    got = self.lines(mapped(f, self.mesh, (P(), P(*XY)), (P(), P(None, 'y')),
                            **UNCHECKED), *args)
    self.assertEqual(got['reduced'][0], 'y')
    self.assertEqual(got['parted'][0], 'x, y' if scanned else 'x')
    names = ['reduced', 'parted', 'gathered'] + ['scanned'] * scanned
    # From 0.6 on a gathered value varies, by its type.
    kept = [n for n in names if n != 'gathered' or not HAS_TYPES]
    self.assertEqual({n: got[n][0] for n in kept},
                     {n: want[n][0] for n in kept})

  def test_unknown_is_said(self):
    def f(w):
      w = jax.pure_callback(lambda x: x, w, w)  # pure
      x = jax.experimental.io_callback(lambda x: x, w, w)  # foreign
      return w + lax.pmax(x, XY)
    got = self.lines(mapped(f, self.mesh, P(), **UNCHECKED), jnp.ones(2))
    self.assertEqual(got['pure'], ('same', []))
    self.assertEqual(got['foreign'], ('x, y', [
        'nothing is known of `io_callback`: taken to vary over all']))

  @parameterized.parameters(*sorted(RIGHT))
  def test_shows_what_runs(self, name):
    self.assertEqual(jax.debug.show_varying.__module__.split('.')[0], 'jax')
    f, args = RIGHT[name](self.mesh)
    text = jax.jit(f).lower(*args).as_text()
    got = self.shown(f, *args)
    self.assertIn('replicated.py', str(got))
    self.assertIn("shard_map over {'x': 2", str(got))
    jax.clear_caches()
    self.assertEqual(jax.jit(f).lower(*args).as_text(), text)

  def test_explicit_and_auto_axes(self):
    kinds = jax.sharding.AxisTypes if hasattr(
        jax.sharding, 'AxisTypes') else jax.sharding.AxisType
    mesh = typed_mesh((2, 2), XY, (kinds.Auto, kinds.Auto))
    def f(a):
      b = a * 2  # double
      return lax.psum(b, 'x')  # result
    f = mapped(f, mesh, P('x'), **partly_manual('y', of=XY))
    got = self.shown(jax.jit(f), rows())
    self.assertEqual({k: v for k, (v, _) in lines_of(got).items()},
                     {'double': 'x', 'result': 'same'})

  def test_nothing_is_run(self):
    calls = []
    def f(w):
      jax.debug.callback(lambda: calls.append(0))
      return w + lax.psum(1., XY)  # line
    f = mapped(f, self.mesh, P())
    got = self.lines(f, jax.ShapeDtypeStruct((3,), np.float32))
    self.assertEqual(got['line'][0], 'same')
    self.assertEmpty(calls)

  def test_static_arguments_of_jit(self):
    def f(a, times):
      return mapped(lambda a: sum(lax.psum(a, 'x') for _ in range(times)),
                    self.mesh, P(*XY), P(None, 'y'))(a)
    got = jax.debug.show_varying(jax.jit(f, static_argnums=1))(rows(), 3)
    self.assertRegex(str(got), r'(?m)^ *\d+  y +return mapped')

  def test_page(self):
    show = jax.debug.show_varying
    def f(a):
      small = a.sum() < 3  # <b>&amp;</b>
      return lax.psum(lax.select(small, a * 0, a), XY)  # sum
    got = self.shown(mapped(f, self.mesh, P(*XY)), rows())
    table = Table(got.html)
    self.assertEqual((table.open, table.loads), ([], []))
    self.assertStartsWith(got.html, '<!DOCTYPE html>')
    self.assertIn(got._repr_html_(), got.html)
    self.assertIn('# &lt;b&gt;&amp;amp;&lt;/b&gt;', got.html)
    # What the text has, the page has.
    rows_ = [r for kind, r in table.rows if kind == 'line']
    text = [line for line in str(got).splitlines()
            if re.match(r' *\d+ ', line)]
    self.assertLen(rows_, len(text))
    for (number, _, code), line in zip(rows_, text):
      self.assertStartsWith(line.lstrip(), number)
      self.assertIn(code.strip(), line)
    notes = [r[2] for kind, r in table.rows if kind.startswith('note')]
    said = [line.strip()[2:] for line in str(got).splitlines()
            if line.strip().startswith('^')]
    self.assertNotEmpty(said)
    self.assertEqual(notes, said)
    path = self.create_tempfile('page.html').full_path
    got.save(os.fspath(path))
    with open(path, encoding='utf-8') as f:
      self.assertEqual(f.read(), got.html)
    self.assertEqual(show.__name__, 'show_varying')

  def test_refused(self):
    show = jax.debug.show_varying
    with self.assertRaisesRegex(TypeError, 'expected a function, got 3'):
      show(3)

  @red(r"^ModuleNotFoundError: No module named 'jax\._src\.sanitizer'",
       api_missing=True)
  def test_doctests(self):
    from jax._src.sanitizer import showing
    run_docstrings(self, showing, 2)
