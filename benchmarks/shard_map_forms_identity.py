# SPDX-License-Identifier: Apache-2.0
"""Random programs in two environments: the same jaxpr and lowered text.

    python benchmarks/shard_map_forms_identity.py PYTHON [COUNT [SEED]]

The Python given has a mended wheel from before a change, the running one that
from after it; both have pytest's dependencies. Programs are drawn from the
table of ``tests/varying/forms_test.py``. Each that was accepted must be, and
none may differ: CONTRIBUTING.md says before which changes. The Python may have
the pristine release, too. Then those differ that have a defect of upstream's in
them, such as a branch whose index varies, and no others may.
"""
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('XLA_FLAGS', '--xla_force_host_platform_device_count=8')
TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'tests')


def texts(count, seed):
  """For each program that is accepted, its jaxpr and its lowered text."""
  sys.path.insert(0, TESTS)
  import jax
  import varying.testing.forms_running as forms
  found = {}
  for n in range(seed, seed + count):
    name, wrap, transform, mesh = forms.program(n)
    if 'eager' in transform or transform == 'disable':
      transform = 'jit'
    f, claims, _ = forms.FORMS[name]
    run = jax.jit(forms.TRANSFORMS[transform](
        forms.on_mesh(forms.WRAPS[wrap](f), claims, mesh)))
    try:
      jaxpr = str(jax.make_jaxpr(run)(*forms.inputs()))
      lowered = run.lower(*forms.inputs()).as_text()
    except Exception:  # pylint: disable=broad-except
      continue
    found[f'{n} {name} {wrap} {transform} {mesh}'] = [
        re.sub('0x[0-9a-f]+', '', jaxpr), lowered]
  return found


def main(python, count='100', seed='0'):
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, 'before.json')
    environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    subprocess.run([python, os.path.abspath(__file__), '--write', path, count,
                    seed], check=True, env=environment, cwd=folder)
    with open(path) as f:
      before = json.load(f)
  after, tally = texts(int(count), int(seed)), collections.Counter()
  for name, want in before.items():
    if name not in after:
      verdict = 'refused'
    else:
      same = [a == b for a, b in zip(want, after[name])]
      verdict = {(True, True): 'same', (False, True): 'another jaxpr'}.get(
          tuple(same), 'another program')
    tally[verdict] += 1
    if verdict != 'same':
      print(f'{verdict}: {name}')
  print(f'{count} programs, accepted before {len(before)}, after '
        f'{len(after)}; of the former: {dict(tally)}')
  return 0 if tally['same'] == len(before) > 0 else 1


if __name__ == '__main__':
  if sys.argv[1] == '--write':
    with open(sys.argv[2], 'w') as out:
      json.dump(texts(int(sys.argv[3]), int(sys.argv[4])), out)
  else:
    sys.exit(main(*sys.argv[1:]))
