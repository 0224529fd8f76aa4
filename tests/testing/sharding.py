# SPDX-License-Identifier: Apache-2.0
"""Eight devices and a ``shard_map``, on every release.

What a test of several devices begins with. It has no tests of its own.
"""
import os

import jax
from jax._src import test_util as jtu
import numpy as np

try:
  from jax import shard_map as shard_map
except ImportError:  # 0.5.3 and 0.6.0
  from jax.experimental.shard_map import shard_map as shard_map

# The option of shard_map that turns its check on and off.
CHECK = 'check_vma' if hasattr(jax, 'shard_map') else 'check_rep'
UNCHECKED = {CHECK: False}

_BY_TYPE = not hasattr(jax.sharding, 'AxisType')  # up to 0.5.2
AxisType = jax.sharding.AxisTypes if _BY_TYPE else jax.sharding.AxisType


def eight_devices():
  """Asks for eight devices of the CPU, before any backend has been started.

  Programs compare what is taken to agree across them, where there is the option
  to. (Before 0.10 XLA ends the process where a callback is in a shard_map one
  of whose axes has one device.) No test that reads a jaxpr or text minds.
  """
  if hasattr(jax.config, 'jax_check_agreement') and (
      jax.__version_info__ >= (0, 10)):
    jax.config.update('jax_check_agreement', True)
  if hasattr(jtu, 'request_cpu_devices'):
    jtu.request_cpu_devices(8)
  else:  # 0.5.3
    os.environ.setdefault(
        'XLA_FLAGS', '--xla_force_host_platform_device_count=8')


def typed_mesh(sizes, names, types):
  """A mesh of the first devices whose axes are of these types."""
  if _BY_TYPE:
    types = {kind: tuple(n for n, t in zip(names, types) if t == kind)
             for kind in types}
  devices = np.array(jax.devices()[:np.prod(sizes)]).reshape(sizes)
  return jax.sharding.Mesh(devices, names, axis_types=types)


def smap(in_specs, out_specs, sizes=(2,), **options):
  """A decorator: `shard_map` over a mesh of i, or i and j, of these sizes."""
  devices = np.array(jax.devices()[:np.prod(sizes)]).reshape(sizes)
  mesh = jax.sharding.Mesh(devices, ('i', 'j')[:len(sizes)])
  return lambda f: shard_map(f, mesh=mesh, in_specs=in_specs,
                             out_specs=out_specs, **options)


def partly_manual(*auto, of='xyz'):
  """A shard_map's arguments that leave these of the mesh's axes be."""
  if hasattr(jax, 'shard_map'):
    return dict(axis_names=set(of) - set(auto))
  return dict(auto=frozenset(auto))


def columns(ndim, sharding):
  """A layout in the order of columns, under this release's names."""
  from jax.experimental import layout
  order = getattr(layout, 'DeviceLocalLayout', None) or layout.Layout
  placed = getattr(layout, 'Format', None) or layout.Layout
  return placed(order(tuple(range(ndim))[::-1]), sharding)
