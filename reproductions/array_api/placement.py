# SPDX-License-Identifier: Apache-2.0
"""Whether creation functions put arrays where device= says (jax#27606)."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np

try:
  from jax.sharding import AxisType
  EXPLICIT = (AxisType.Explicit,)
except ImportError:  # up to 0.5.2
  EXPLICIT = {jax.sharding.AxisTypes.Explicit: ("x",)}

REPORT = "jax#27606"


def _split(**kwargs):
  return NamedSharding(Mesh(np.array(jax.devices()), ("x",), **kwargs), P("x"))


def _placed(function, device):
  try:
    x = function(device)
  except Exception as e:
    raise AssertionError(f"{type(e).__name__}: {str(e)[:150]}") from e
  assert x.device == device, f"placed on {x.device}"
  return "placed there"


def asarray_moves():
  """asarray(x, device=d) moves an x that is committed to another device"""
  x = jax.device_put(jnp.arange(8.), jax.devices()[1])
  return _placed(lambda d: jnp.asarray(x, device=d), jax.devices()[0])


def explicit_axes():
  """asarray takes the sharding of an array over an Explicit mesh axis"""
  x = jax.device_put(jnp.arange(8.), _split(axis_types=EXPLICIT))
  return _placed(lambda d: jnp.asarray(np.arange(8.), device=d), x.device)


def fill_values():
  """full with an array of fill values takes a sharding over devices"""
  return _placed(lambda d: jnp.full((8,), jnp.arange(8.), device=d), _split())


def fftfreq():
  """fft.fftfreq takes a sharding over devices"""
  return _placed(lambda d: jnp.fft.fftfreq(8, device=d), _split())


def from_dlpack():
  """from_dlpack takes a sharding over devices"""
  return _placed(lambda d: jnp.from_dlpack(np.arange(8.), device=d), _split())
