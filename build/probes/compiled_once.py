# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that compiles each module once in a process.

Tests without jit compile the same few operations again for each function, and
XLA takes half of a test file's time. Where the module's text, the options and
the devices are the same, so is the executable. What has callbacks, which belong
to one executable, and a test that has turned on a compilation cache of its own,
compile as ever.
"""

import functools
import sys


def _wrap(compiler):
  compile_it = compiler.compile_or_get_cached
  made = {}

  @functools.wraps(compile_it)
  def compiled_once(backend, module, devices, options, host_callbacks,
                    *args, **kwargs):
    make = functools.partial(compile_it, backend, module, devices, options,
                             host_callbacks, *args, **kwargs)
    if host_callbacks or _cache_folder() != folder:
      return make()
    key = (str(module), options.SerializeAsString(),
           tuple(d.id for d in devices.flat))
    if (found := made.get(key)) is None or found[0] is not backend:
      found = made[key] = backend, make()
    return found[1]

  folder = _cache_folder()
  compiler.compile_or_get_cached = compiled_once


def _cache_folder():
  return sys.modules["jax"].config.jax_compilation_cache_dir


def pytest_collection_finish():
  compiler = sys.modules.get("jax._src.compiler")
  if compiler is not None:
    _wrap(compiler)
