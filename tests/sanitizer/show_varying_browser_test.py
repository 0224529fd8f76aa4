# SPDX-License-Identifier: Apache-2.0
"""The page of jax.debug.show_varying in a browser, as a reader sees it.

Debian's chromium draws it, without a window; ``.ci/browser`` installs it.
"""
import contextlib
import functools
import html
import io
import json
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import unittest
import zlib

from absl.testing import parameterized
from sanitizer.testing.apart import mapped, XY
from sanitizer.testing.replicated import rows
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

BROWSER = shutil.which('chromium') or shutil.which('google-chrome')
# What is read from the page once it is drawn.
PROBE = """
<script>
const chips = {};
for (const e of document.querySelectorAll('.chip')) {
  const style = getComputedStyle(e);
  chips[e.textContent] = [style.color, style.backgroundColor];
}
const tops = [...document.querySelectorAll('tr.line, tr.note')].map(
    e => [e.className, e.getBoundingClientRect().top,
          e.getBoundingClientRect().height, e.innerText]);
const out = document.createElement('pre');
out.id = 'probe';
out.textContent = JSON.stringify({
    chips, tops, wide: document.documentElement.scrollWidth,
    window: innerWidth,
    loads: performance.getEntriesByType('resource').length});
document.body.append(out);
</script>
"""


def browse(page, *options):
  """What the browser prints of a page."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'page.html')
    path.write_text(page, encoding='utf-8')
    return subprocess.run(
        [BROWSER, '--headless', '--no-sandbox', '--disable-gpu',
         '--hide-scrollbars', '--disable-dev-shm-usage',
         f'--user-data-dir={folder}/profile', *options, path.as_uri()],
        capture_output=True, text=True, check=True, timeout=400).stdout


@functools.cache
def probed(page, width):
  """What the probe reads of a page in a window of a width."""
  dom = browse(page.replace('</body>', PROBE + '</body>'), '--dump-dom',
               f'--window-size={width},700')
  text = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)[1]
  return json.loads(html.unescape(text))


def pixels(png):
  """The pixels of a PNG file of 8 bits, as rows of red, green and blue."""
  at, data, channels, width = 8, b'', 0, 0
  while at < len(png):
    size, kind = struct.unpack('>I4s', png[at:at + 8])
    body = png[at + 8:at + 8 + size]
    if kind == b'IHDR':
      width, height, depth, colour = struct.unpack('>IIBB', body[:10])
      assert depth == 8 and colour in (2, 6), (depth, colour)
      channels = 3 if colour == 2 else 4
    elif kind == b'IDAT':
      data += body
    at += size + 12
  lines = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, -1)
  out = np.zeros((height, width * channels), np.int64)
  above = out[0] * 0
  for n, (kind, *line) in enumerate(lines.astype(np.int64).tolist()):
    out[n] = above = unfiltered(kind, line, above.tolist(), channels)
  return out.reshape(height, width, channels)[..., :3]


def unfiltered(kind, line, above, step):
  """A line of a PNG file, of the five ways to predict a byte."""
  if kind == 0:
    return np.array(line)
  if kind == 2:
    return (np.array(line) + above) % 256
  for n in range(len(line)):
    left = line[n - step] if n >= step else 0
    corner = above[n - step] if n >= step else 0
    up = above[n]
    near = min((left, up, corner), key=lambda x: abs(left + up - corner - x))
    line[n] = (line[n] + (left, None, (left + up) // 2, near)[kind - 1]) % 256
  return np.array(line)


def rgb(text):
  return tuple(map(int, re.findall(r'\d+', text)[:3]))


def luminance(colour):
  parts = np.array(colour) / 255
  linear = np.where(parts <= .03928, parts / 12.92, ((parts + .055) / 1.055
                                                     ) ** 2.4)
  return linear @ (.2126, .7152, .0722)


@unittest.skipUnless(BROWSER, 'needs chromium: .ci/browser installs it')
@jtu.with_config(jax_numpy_rank_promotion='allow')
class ShowVaryingBrowserTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), XY)
    def loss(w, a):
      y = w * a  # <i> & "quoted" </i>
      def step(c, x):
        return c + x.sum(), None
      c, _ = lax.scan(step, 0., y)
      w = lax.pmean(c, 'x')
      return lax.pmean(w, 'y')
    f = mapped(jax.value_and_grad(loss) if jax.__version_info__ >= (0, 6)
               else loss, mesh, (P(), P(*XY)))
    with contextlib.redirect_stdout(io.StringIO()):
      self.got = jax.debug.show_varying(f)(jnp.ones(2), rows())

  @parameterized.parameters(1000, 500)
  def test_is_drawn(self, width):
    seen = probed(self.got.html, width)
    self.assertEqual(seen['loads'], 0)
    self.assertLessEqual(seen['wide'], seen['window'])
    lines = [line for line in str(self.got).splitlines()
             if re.match(r' *\d+ | *\^ ', line)]
    self.assertLen(seen['tops'], len(lines))
    below = -1.
    for (kind, top, height, text), line in zip(seen['tops'], lines):
      self.assertGreater(top, below)
      self.assertGreater(height, 10)
      self.assertEqual(kind.startswith('note'), line.lstrip().startswith('^'))
      said = text.strip() if kind.startswith('note') else (
          text.split('\t')[2].strip())
      self.assertIn(re.sub(r'\s+', ' ', said), re.sub(r'\s+', ' ', line))
      below = top
    self.assertIn('# <i> & "quoted" </i>', '\n'.join(
        text for _, _, _, text in seen['tops']))

  def test_colours_are_told_apart_and_read(self):
    chips = probed(self.got.html, 1000)['chips']
    self.assertEqual(set(chips), {'x', 'y', 'same'})
    self.assertLen({back for _, back in chips.values()}, 3)
    for text, back in chips.values():
      dark, light = sorted(luminance(rgb(c)) for c in (text, back))
      self.assertGreater((light + .05) / (dark + .05), 4.5)

  def test_screenshot(self):
    chips = probed(self.got.html, 1000)['chips']
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'page.png')
      browse(self.got.html, f'--screenshot={path}', '--window-size=800,600')
      image = pixels(path.read_bytes())
    self.assertEqual(image.shape, (600, 800, 3))
    for name, (_, back) in chips.items():
      found = (image == rgb(back)).all(-1)
      self.assertGreater(found.sum(), 100, name)
    white = (image == 255).all(-1).mean()
    self.assertBetween(white, .3, .98)
