# SPDX-License-Identifier: Apache-2.0
"""Random programs that upstream accepts: jaxpr and lowered text.

    python benchmarks/shard_map_forms_identity.py PYTHON [COUNT [SEED]]

The Python given has the pristine release, the running one the mended; both have
pytest's dependencies. Programs are drawn from the table of
``tests/varying/forms_test.py``. What pristine accepts must be accepted, and
what differs is listed: that is right for programs with a defect of upstream's
in them, such as a branch whose index varies, and for no other.
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
    path = os.path.join(folder, 'pristine.json')
    environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    subprocess.run([python, os.path.abspath(__file__), '--write', path, count,
                    seed], check=True, env=environment, cwd=folder)
    with open(path) as f:
      pristine = json.load(f)
  mended, tally = texts(int(count), int(seed)), collections.Counter()
  for name, want in pristine.items():
    if name not in mended:
      verdict = 'refused'
    else:
      same = [a == b for a, b in zip(want, mended[name])]
      verdict = {(True, True): 'same', (False, True): 'another jaxpr'}.get(
          tuple(same), 'another program')
    tally[verdict] += 1
    if verdict != 'same':
      print(f'{verdict}: {name}')
  print(f'{count} programs, pristine accepts {len(pristine)}, mended '
        f'{len(mended)}; of the former: {dict(tally)}')
  return 1 if tally['refused'] else 0


if __name__ == '__main__':
  if sys.argv[1] == '--write':
    with open(sys.argv[2], 'w') as out:
      json.dump(texts(int(sys.argv[3]), int(sys.argv[4])), out)
  else:
    sys.exit(main(*sys.argv[1:]))
