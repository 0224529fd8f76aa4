# SPDX-License-Identifier: Apache-2.0
"""Comparing values between devices by digests, bit for bit.

A digest is two sums, modulo 2^32, of hashes of 32 bits: of each word of 32 bits
of the value together with its place, hashed differently for each sum. Integer
sums don't depend on their order, so equal bits give equal digests on every
device; bits that differ give equal ones with a chance of about 2^-64, also
where the words are the same and only their places differ. One word that differs
never does. nan is one value, whatever its bits; 0 and -0 are two.

Both hashes are bijections of the word for each place, in which each bit of the
one and of the other changes each bit of the hash with a chance of about a half.
Sums of anything more linear are the same for values that people compute with: a
vector of 1 and -1 and its negation, a mask and its complement, permutations.

With a tolerance the greatest and the least of each element are compared.

Cost: one pass over the value, and 8 bytes to reduce over devices for each.
"""
from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax._src import dtypes
from jax._src.mend import traces
import jax.numpy as jnp
import numpy as np

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}
# Shifts and factors that are known to mix well: fmix32 of Austin Appleby's
# MurmurHash3, and lowbias32 of Chris Wellons' hash prospector.
_MURMUR = ((16, 0x85ebca6b), (13, 0xc2b2ae35), 16)
_LOWBIAS = ((16, 0x7feb352d), (15, 0x846ca68b), 16)
# Odd and arbitrary: the golden ratio's bits, and those of pi.
_SEED, _STRIDE = np.uint32(0x9e3779b9), np.uint32(0x243f6a89)


def comparable(aval: Any) -> bool:
  """True if a value of this type can be compared: an array or keys."""
  dtype = getattr(aval, 'dtype', None)
  if dtype is None or traces.is_ref_type(aval) or not aval.size:
    return False
  if dtypes.issubdtype(dtype, dtypes.extended):
    return dtypes.issubdtype(dtype, dtypes.prng_key)
  return dtype != dtypes.float0


def plain(x: Any) -> Any:
  """The value as one that numpy and every callback know.

  Keys are their data, numbers of less than 16 bits wider ones of equal value.
  """
  if dtypes.issubdtype(x.dtype, dtypes.prng_key):
    return jax.random.key_data(x)
  if x.dtype == jnp.bool_:
    return x
  if jnp.issubdtype(x.dtype, jnp.integer):
    return x.astype(jnp.int32) if 'int4' in x.dtype.name or (
        'int2' in x.dtype.name) else x
  if x.dtype.itemsize == 1 or x.dtype == jnp.bfloat16:
    return x.astype(jnp.float32)
  return x


def _words(x: Any) -> Any:
  """The bits of a plain array as words of 32 bits, with one more dimension."""
  if jnp.issubdtype(x.dtype, jnp.complexfloating):
    return jnp.concatenate([_words(x.real), _words(x.imag)], axis=-1)
  if x.dtype == jnp.bool_:
    return x.astype(jnp.uint32)[..., None]
  if jnp.issubdtype(x.dtype, jnp.floating):
    x = jnp.where(x != x, jnp.full_like(x, jnp.nan), x)
  bits = lax.bitcast_convert_type(x, _WORDS[x.dtype.itemsize])
  return bits.astype(jnp.uint32).reshape(*x.shape, -1)


def _mixed(words: Any, steps: tuple) -> Any:
  """Words with their bits mixed, one to one."""
  *rounds, last = steps
  for shift, factor in rounds:
    words = (words ^ (words >> shift)) * np.uint32(factor)
  return words ^ (words >> last)


def _places(shape: tuple) -> Any:
  """Each element's own number, without a reshape: 0.5.3 may refuse one."""
  place: Any = np.uint32(0)
  for n, size in enumerate(shape):
    place = place * np.uint32(size % 2**32) + lax.broadcasted_iota(
        jnp.uint32, shape, n)
  return place


@jax.jit
def _digest(x: Any) -> Any:
  words = _words(plain(x))
  place = _mixed(_places(words.shape) + _SEED, _LOWBIAS)
  # Words and places that are one input to the first hash aren't to the second.
  first = _mixed(words ^ place, _MURMUR)
  second = _mixed(words + place * _STRIDE, _LOWBIAS)
  total = lambda w: jnp.sum(w, dtype=jnp.uint32)
  return jnp.stack([total(first), total(second)])


def digest(x: Any) -> Any:
  """Two numbers of 32 bits that tell whether values are the same."""
  return _digest(x)


def differ(found: Any, axes: tuple) -> Any:
  """Compares a list of digests between the devices along these axes.

  Args:
    found: an array of shape (n, 2).
    axes: of the mesh.

  Returns:
    n truth values, the same on all these devices.
  """
  both = lax.pmax(jnp.concatenate([found, ~found]), axes)
  greatest, least = jnp.split(both, 2)
  return jnp.any(greatest != ~least, axis=1)


def beyond(x: Any, axes: tuple, rtol: float) -> Any:
  """True if any element differs by more than a fraction between devices."""
  x = plain(x)
  if jnp.issubdtype(x.dtype, jnp.complexfloating):
    return beyond(x.real, axes, rtol) | beyond(x.imag, axes, rtol)
  if not jnp.issubdtype(x.dtype, jnp.floating):
    return differ(digest(x)[None], axes)[0]
  # An infinity has no distance to itself, and nan none to anything.
  special = jnp.where(jnp.isfinite(x), jnp.zeros_like(x), x)
  x = jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x))
  greatest, least = lax.pmax(x, axes), lax.pmin(x, axes)
  scale = jnp.maximum(jnp.abs(greatest), jnp.abs(least))
  return jnp.any(greatest - least > rtol * scale) | differ(
      digest(special)[None], axes)[0]
