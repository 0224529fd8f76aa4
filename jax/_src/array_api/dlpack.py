# SPDX-License-Identifier: Apache-2.0
"""Copies, devices and layouts, as ``from_dlpack`` promises them (jax#27606).

The standard's ``copy=True`` means memory of one's own, ``copy=False`` memory
that is shared or an error, and ``None`` that either will do. What the runtime
makes of a capsule depends on the release: it copies what is not aligned and
shares the rest, whatever ``copy`` says. So the address of the data is read from
the capsule before it is handed over, and compared with that of the result:

* with ``copy=True``, what shares its memory is copied, and the copy is waited
  for, so that a later write of the producer can't show in it;
* with ``copy=False``, what doesn't share its memory is refused. A dtype that
  this configuration lacks is converted nevertheless, as by stock JAX: float64
  becomes float32 as long as jax_enable_x64 is off.

What a capsule can't carry, or the runtime can't read, is taken by value through
NumPy: strided views, and NumPy arrays that are read-only or of dtypes that
NumPy doesn't export. So are arrays in another order than that of rows, where
the runtime takes them for such (silently from 0.6.1 to 0.7.1, a refusal in
0.7.2): it is asked once, by a small one. From 0.8.0 to 0.9.2 the runtime reads
them right and moves them wrong, silently, to another device of the CPU, so that
only ``copy=False`` shares their memory, and such an array is not to be moved
by ``jax.device_put``. An array of ours on another CPU device
than the first comes back on its own device: DLPack has one CPU, and all its
devices share the memory.

The capsule's layout is the C interface of DLPack; two fixed offsets are read.
Limits: strided views in the memory of an accelerator are refused. Cost: the
copies that are asked for; a capsule is read, which takes some microseconds,
where `copy` is given or the runtime doesn't heed the order of dimensions.
"""
from __future__ import annotations

from collections.abc import Callable
import ctypes
import datetime
import functools
from typing import Any

from jax._src import array
from jax._src import core
from jax._src.mend import releases
from jax._src import xla_bridge
from jax._src.lib import xla_client as xc
from jax._src.mend import pages

import numpy as np

_NEXT = 'Leave copy out, or pass copy=None or copy=True.'


class CopyRequired(BufferError, ValueError):
  """A BufferError, as the array API standard demands; upstream's ValueError."""


def to_buffer(capsule: Any, device: xc.Device, *args: Any,
              copy: bool | None) -> Any:
  """Makes an array of a DLPack capsule.

  Args:
    capsule: what ``__dlpack__`` returned.
    device: the device that the memory belongs to.
    *args: what else this release's runtime is given.
    copy: as in :func:`jax.numpy.from_dlpack`.

  Returns:
    An array on `device`.

  Raises:
    ValueError: if `copy` is False and there is no way without one.
  """
  reads, moves = _reads_strides(), _moves_strides()
  in_rows = reads and moves or _is_in_rows(capsule)  # else it is not asked
  if not in_rows and not reads:
    out = None
    if device.platform == 'cpu':
      _may_copy(copy, 'the runtime of this release reads arrays in the order of'
                ' rows only')
      out = _by_numpy(capsule, device)
    if out is None:
      raise ValueError(
          'jax.numpy.from_dlpack: expected an array whose dimensions are in the'
          ' order of rows in memory, which is all that the runtime of this'
          ' release reads. Got one in another order. Pass a contiguous copy of'
          ' it, such as x.contiguous() of PyTorch.' +
          pages.see('array_api.md#sharing-memory-from_dlpack'))
    return out
  if copy is not False and not in_rows and not moves:
    out = _by_numpy(capsule, device)
    if out is not None:
      return out
    copy = True  # into rows
  source = None if copy is None else _address(capsule)
  try:
    out = releases.runtime().dlpack_managed_tensor_to_buffer(
        capsule, device, *args)
  except xc.XlaRuntimeError as e:
    empty = _is_empty(capsule)  # then there is nothing to share, or to align
    if device.platform != 'cpu' or not (empty or 'striding' in str(e)):
      raise
    if not empty:
      _may_copy(copy, 'its strides are not those of a dense array')
    out = _by_numpy(capsule, device)
    if out is None:
      raise
    return out
  if copy is None:
    return out
  if not out.size:
    return out
  shares = source is not None and out.unsafe_buffer_pointer() == source
  if not shares and source is not None:
    _may_copy(copy, 'its memory is not aligned')
  return _copied(out) if copy and (shares or source is None) else out


def _by_numpy(capsule: Any, device: xc.Device) -> Any:
  """Reads a capsule with NumPy; None if NumPy lacks its dtype.

  The capsule can be read by the runtime then, as nobody has taken it.
  """
  try:
    values = np.from_dlpack(_Carrier(capsule))
  except RuntimeError:  # bfloat16 and the smaller floats
    return None
  return _own(values, device)


def home(external: Any, device: Any) -> Any:
  """The device that the memory of `external` belongs to.

  Args:
    external: what is imported.
    device: the device that its ``__dlpack_device__`` names.

  Returns:
    The own device of an array of ours on a CPU, else `device`.
  """
  if (not isinstance(external, array.ArrayImpl)
      or getattr(external.sharding, '_device', None) is device
      or device.platform != 'cpu'):
    return device
  own: Any
  own, = external.devices()
  return own if own.client is device.client else device


def requested(look_up: Callable[[], Any], dl_device: Any) -> Any:
  """The device of ``__dlpack__(dl_device=)``, looked up.

  Args:
    look_up: returns the device, or the backend that has it.
    dl_device: the type and number of the device, as DLPack writes them.

  Returns:
    What `look_up` returns.

  Raises:
    BufferError: if the device isn't there, as the array API standard demands.
  """
  try:
    return look_up()
  except RuntimeError as e:
    kind, number = dl_device
    raise BufferError(
        'jax.Array.__dlpack__: expected dl_device= to be a device of this'
        f' process. Got device {number} of DLDeviceType {int(kind)}, which'
        f' JAX does not have here ({e}). Leave dl_device out to export the'
        ' array from where it is.' +
        pages.see('array_api.md#sharing-memory-from_dlpack')) from e


def wait_if_moved(out: Any, wanted: xc.Device | None, device: xc.Device) -> Any:
  """Waits for `out` if it was moved away from memory of another library.

  Args:
    out: the imported array.
    wanted: the device that it was to be moved to, if any.
    device: where the memory of the producer is.

  Returns:
    `out`.
  """
  # Under jit, what is moved is traced.
  if (wanted is not None and device.platform == 'cpu'
      and isinstance(out, array.ArrayImpl) and out.devices() != {device}):
    out.block_until_ready()
  return out


def is_beyond_dlpack(external: Any) -> bool:
  """True if NumPy can't export `external`, which JAX can still read."""
  if not isinstance(external, np.ndarray) or (
      external.dtype.isbuiltin == 1 and external.flags.writeable):
    return False
  from jax._src import dlpack  # not on top: dlpack imports this module
  if not external.flags.writeable and (
      tuple(dlpack.DLPACK_VERSION) < (1, 0)
      or np.lib.NumpyVersion(np.__version__) < '2.1.0'):
    return True
  return (external.dtype.isbuiltin != 1 and external.dtype.isnative
          and external.dtype in [np.dtype(t) for t in dlpack.SUPPORTED_DTYPES])


def by_value(external: np.ndarray, device: Any, copy: bool | None) -> Any:
  """Imports a NumPy array that NumPy can't export.

  Args:
    external: the array.
    device: a device or sharding, or None for the CPU's first device.
    copy: as in :func:`jax.numpy.from_dlpack`.

  Returns:
    An array with memory of its own.

  Raises:
    ValueError: if `copy` is False.
  """
  _may_copy(copy, 'NumPy does not export read-only arrays to this release'
            if external.dtype.isbuiltin == 1
            else f'NumPy does not export arrays of {external.dtype}')
  if device is None:
    device = xla_bridge.get_backend('cpu').local_devices()[0]
  return _own(external, device)


class _Carrier:
  """Hands a capsule that was not taken to NumPy."""

  def __init__(self, capsule: Any):
    self._capsule = capsule

  def __dlpack__(self, **kwargs: Any) -> Any:
    return self._capsule

  def __dlpack_device__(self) -> tuple[int, int]:
    return (1, 0)  # the CPU


def _own(x: np.ndarray, device: Any) -> Any:
  from jax._src import api
  # NumPy makes the copy: device_put may share the memory of what it is given.
  return api.device_put(np.array(x, order='C'), device)


def _copied(x: array.ArrayImpl) -> Any:
  from jax._src.lax import lax
  with core.eval_context():  # also under jit: it is copied now
    return lax._array_copy(x).block_until_ready()


def _may_copy(copy: bool | None, why: str) -> None:
  if copy is False:
    raise ValueError(
        'jax.numpy.from_dlpack: the array requires a copy, since'
        f' {why}. However copy=False. {_NEXT}' +
        pages.see('array_api.md#sharing-memory-from_dlpack'))


class _DLTensor(ctypes.Structure):
  """DLPack's struct of that name."""
  _fields_ = [('data', ctypes.c_void_p), ('device_type', ctypes.c_int32),
              ('device_id', ctypes.c_int32), ('ndim', ctypes.c_int32),
              ('dtype', ctypes.c_uint32), ('shape', ctypes.c_void_p),
              ('strides', ctypes.c_void_p), ('byte_offset', ctypes.c_uint64)]


# As many as a tensor can have dimensions: what is beyond its own isn't read.
_NUMBERS = ctypes.c_int64 * 64

# Bytes before the tensor, by the capsule's name: none, or a version, two
# pointers and flags.
_OFFSETS = {b'dltensor': 0, b'dltensor_versioned': 32}

_CAPSULE = type(datetime.datetime_CAPI)  # which ``types`` has from 3.13 on
_GET = ctypes.pythonapi.PyCapsule_GetPointer
_GET.restype, _GET.argtypes = ctypes.c_void_p, [ctypes.py_object,
                                                ctypes.c_char_p]
_NAME = ctypes.pythonapi.PyCapsule_GetName
_NAME.restype, _NAME.argtypes = ctypes.c_char_p, [ctypes.py_object]


def _tensor(capsule: Any) -> _DLTensor | None:
  if type(capsule) is not _CAPSULE:
    return None  # no C interface: this is for the runtime to refuse
  name = _NAME(capsule)
  if name not in _OFFSETS:
    return None
  return _DLTensor.from_address(_GET(capsule, name) + _OFFSETS[name])


def _address(capsule: Any) -> int | None:
  tensor = _tensor(capsule)
  return None if tensor is None else (
      (tensor.data or 0) + tensor.byte_offset)


def _is_empty(capsule: Any) -> bool:
  tensor = _tensor(capsule)
  if tensor is None or not tensor.ndim:
    return False
  shape = ctypes.cast(tensor.shape, ctypes.POINTER(ctypes.c_int64))
  return 0 in shape[:tensor.ndim]


def _is_in_rows(capsule: Any) -> bool:
  """True if the last dimension is dense, and each one on those after it."""
  tensor = _tensor(capsule)
  if tensor is None or not tensor.strides or not tensor.ndim:
    return True
  rank = tensor.ndim
  shape = _NUMBERS.from_address(tensor.shape)[:rank]
  strides = _NUMBERS.from_address(tensor.strides)[:rank]
  dense = 1
  for size, stride in zip(reversed(shape), reversed(strides)):
    if size != 1 and stride != dense:
      return 0 in shape
    dense *= size
  return True


def _probe() -> np.ndarray:
  """A small array in column-major order, in aligned memory."""
  room = np.zeros(32, np.float32)
  start = -room.ctypes.data % 64 // 4  # what isn't aligned is copied in order
  probe = room[start:start + 4].reshape(2, 2).T
  probe[:] = [[0, 1], [2, 3]]
  return probe


def _cpus() -> list[xc.Device]:
  """The CPU devices; none in a process without (``JAX_PLATFORMS=cuda``)."""
  try:
    return xla_bridge.get_backend('cpu').local_devices()
  except RuntimeError:
    return []


@functools.cache
def _reads_strides() -> bool:
  """True if the runtime heeds the order of an array's dimensions in memory.

  Without a CPU device nothing can be asked: then the runtime is left to read or
  refuse, as JAX leaves it.
  """
  probe, devices = _probe(), _cpus()
  if not devices:
    return True
  try:
    out = releases.runtime().dlpack_managed_tensor_to_buffer(
        probe.__dlpack__(), devices[0], None)
  except xc.XlaRuntimeError:
    return False
  return np.array_equal(np.asarray(out), probe)


@functools.cache
def _moves_strides() -> bool:
  """True if what is read and isn't in rows can go to another CPU device.

  From 0.8.0 to 0.9.2 it arrives in another order, also by ``jax.device_put``,
  so that what may be copied is. Asked where `_reads_strides`.
  """
  from jax._src import api  # imports this module
  probe, devices = _probe(), _cpus()
  if len(devices) < 2 or not _reads_strides():
    return True
  out = releases.runtime().dlpack_managed_tensor_to_buffer(
      probe.__dlpack__(), devices[0], None)
  with core.eval_context():  # who asks first may be traced
    moved = api.device_put(out, devices[1])
  return np.array_equal(np.asarray(moved), probe)
