# SPDX-License-Identifier: Apache-2.0
"""Makes an environment in which PyTorch/XLA runs on a machine's CPU.

  python3.10 tests/parameter_map/torch_xla/make_environment.py DIR \
    --wheel=JAX_WHEEL

installs the wheel of a mended jax with its jaxlib, and torch and torch_xla,
pinned, into DIR, and prints the command that runs the test there. It takes 3 GB
and a few minutes.

torch's wheel for x86-64 links against some 20 CUDA libraries, 3 GB more. A CPU
needs them by name only, so they are not installed: empty libraries with their
names, and one with the names of their functions, each of which answers
"no device", satisfy the linker. This takes a C compiler and binutils.

Standard library only.
"""

import argparse
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import venv

# By themselves: what they require otherwise is CUDA's, or listed here.
ALONE = ['torch==2.9.0', 'torch_xla==2.9.0']
WITH_DEPENDENCIES = [
    'absl-py==2.5.1', 'filelock==3.20.0', 'fsspec==2025.10.0',
    'jinja2==3.1.6', 'networkx==3.4.2', 'pyyaml==6.0.3', 'requests==2.32.5',
    'sympy==1.14.0', 'typing_extensions==4.15.0', 'pytest==9.2.0',
]
# A library that torch doesn't ask for versioned functions of: the others would
# have to have versions, to hold functions.
HOLDER = 'libnccl.so.2'
FUNCTION = re.compile(
    r'(__cuda|cu[A-Z]|cublas|cuda|cudnn|cufft|cufile|cupti|curand|cusolver'
    r'|cusparse|nccl|nvml|nvrtc|nvshmem|nvJit)\w*$')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n', 1)[0])
  parser.add_argument('directory', type=pathlib.Path)
  parser.add_argument('--wheel', type=pathlib.Path, required=True,
                      help='of jax, from build/build.py build --wheels=jax')
  args = parser.parse_args()
  directory = args.directory.resolve()
  venv.create(directory, with_pip=True, clear=True)
  python = directory / 'bin' / 'python'
  pip = [python, '-m', 'pip', 'install', '--quiet',
         '--disable-pip-version-check']
  subprocess.run([*pip, args.wheel.resolve(), *WITH_DEPENDENCIES], check=True)
  subprocess.run([*pip, '--no-deps', *ALONE], check=True)
  site = pathlib.Path(subprocess.run(
      [python, '-c', "import sysconfig; print(sysconfig.get_path('purelib'))"],
      check=True, text=True, capture_output=True).stdout.strip())
  stubs = directory / 'stubs'
  make_stubs(site, stubs)
  test = pathlib.Path(__file__).with_name('call_jax_heavy.py').resolve()
  print(f'LD_LIBRARY_PATH={stubs} {python} -m pytest {test}')


def make_stubs(site: pathlib.Path, stubs: pathlib.Path) -> None:
  """Makes libraries for what torch links against and the machine lacks."""
  stubs.mkdir()
  # What Python is linked to may be found by its own path only: not ours.
  libraries = [*site.glob('torch/lib/*.so*'), *site.glob('torch/_C*.so'),
               *site.glob('_XLAC*.so')]
  needed, functions = set(), set()
  for library in libraries:
    needed.update(re.findall(r'\(NEEDED\).*\[(.*)\]',
                             output('readelf', '-d', library)))
    names = (line.split()[-1].split('@')[0] for line in
             output('nm', '-D', '--undefined-only', library).splitlines())
    functions.update(n for n in names if FUNCTION.match(n))
  missing = {n for n in needed - {lib.name for lib in libraries}
             if not n.startswith('libpython') and not loads(n)}
  for name in sorted(missing | {HOLDER}):
    # Registrations return nothing of use; the rest, cudaErrorNoDevice.
    code = ''.join(
        f"long {f}(void) {{ return {0 if f.startswith('__') else 100}; }}\n"
        for f in sorted(functions)) if name == HOLDER else ''
    subprocess.run(
        [os.environ.get('CC', 'cc'), '-w', '-fno-builtin', '-shared',
         '-nostdlib', f'-Wl,-soname,{name}', '-o', stubs / name, '-x', 'c',
         '-'],
        input=code, text=True, check=True)


def output(*command: object) -> str:
  return subprocess.run([str(c) for c in command], check=True, text=True,
                        capture_output=True).stdout


def loads(name: str) -> bool:
  try:
    ctypes.CDLL(name)
  except OSError:
    return False
  return True


if __name__ == '__main__':
  sys.exit(main())
