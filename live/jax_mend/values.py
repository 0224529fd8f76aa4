# SPDX-License-Identifier: Apache-2.0
"""Keeps the values that programs return, so that two runs can be compared.

A value is known by a digest of its bytes, BLAKE2b's. Of the values that are
wanted, the bytes go into one file a run, each once. When the limit is reached,
a value is known by its digest, its largest magnitude and its norm alone.
"""

from __future__ import annotations

from collections.abc import Collection
import concurrent.futures
import hashlib
import importlib
import json
import os
import threading
from typing import Any

_BLOCK = 1 << 17  # elements
_DIGEST = 12  # bytes
_PART = 1 << 21  # bytes that one thread digests


def digest(data: Any) -> str:
  """The digest of bytes; a library's, as a sum of words sees no signs."""
  return hashlib.blake2b(data, digest_size=_DIGEST).hexdigest()


def _digest_of_parts(data: Any) -> str:
  """The digest of an array's bytes; of a large one, by several threads.

  hashlib lets other threads run meanwhile. The parts' size doesn't depend on
  the machine.
  """
  if data.size <= _PART:
    return digest(data)
  parts = [data[at:at + _PART] for at in range(0, data.size, _PART)]
  try:
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
      found = [*pool.map(digest, parts)]
  except RuntimeError:  # the interpreter ends, and starts no thread
    found = [*map(digest, parts)]
  return digest("".join(found).encode())


class Store:
  """The values of one run.

  Args:
    folder: where the file goes.
    limit: the bytes that may be kept.
    other: the folder of a run whose values needn't be kept again.
    wanted: the values to keep; None for all.
  """

  def __init__(self, folder: str, limit: int, other: str = "",
               wanted: Collection[str] | None = None):
    self._np = importlib.import_module("numpy")
    self._left = limit
    self._file = open(os.path.join(folder, "values.bin"), "wb")
    self._list = open(os.path.join(folder, "values.jsonl"), "w",
                      encoding="utf-8", buffering=1)
    self._known = {*kept(other)} if other else set()
    self._wanted = None if wanted is None else {*wanted}
    self._lock = threading.Lock()

  def digest(self, value: Any) -> str:
    """Names an array by dtype, shape and content; keeps it, if wanted."""
    value = self._np.ascontiguousarray(value)
    data = value.reshape(-1).view(self._np.uint8)
    name = f"{value.dtype}{list(value.shape)}:{_digest_of_parts(data)}"
    with self._lock:
      if name not in self._known:
        self._known.add(name)
        self._keep(name, value, data)
    return name

  def _keep(self, name: str, value: Any, data: Any) -> None:
    row: dict[str, Any] = {"name": name, "dtype": str(value.dtype),
                           "shape": value.shape}
    if self._wanted is not None and name not in self._wanted:
      pass
    elif data.size <= self._left:
      self._left -= data.size
      row["at"], row["size"] = self._file.tell(), data.size
      self._file.write(data)
      self._file.flush()
    else:
      row.update(_summary(self._np, value))
    self._list.write(json.dumps(row) + "\n")


def _summary(np: Any, value: Any) -> dict[str, float]:
  """The largest magnitude and the norm, by blocks: a copy costs more."""
  flat, largest, square = value.reshape(-1), 0., 0.
  try:
    for start in range(0, flat.size, _BLOCK):
      numbers = np.abs(flat[start:start + _BLOCK]).astype(np.float64)
      largest = float(np.maximum(largest, numbers.max()))  # nan, if one is
      square += float(np.dot(numbers, numbers))
  except (TypeError, ValueError):
    return {}
  return {"largest": largest, "norm": square ** .5}


def kept(folder: str) -> dict[str, dict[str, Any]]:
  """The rows of a run's values, by name."""
  found = {}
  try:
    with open(os.path.join(folder, "values.jsonl"), encoding="utf-8") as rows:
      for line in rows:
        if line.endswith("\n"):
          row = json.loads(line)
          found[row["name"]] = {**row, "file": os.path.join(
              folder, "values.bin")}
  except OSError:
    pass
  return found


def read(row: dict[str, Any]) -> Any:
  """The array of a row, or None where its bytes are not kept."""
  np = importlib.import_module("numpy")  # jax has it, jax-mend needn't
  if "at" not in row:
    return None
  if row["dtype"] not in np.sctypeDict:
    ml_dtypes = importlib.import_module("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, row["dtype"]))
  else:
    dtype = np.dtype(row["dtype"])
  with open(row["file"], "rb") as file:
    file.seek(row["at"])
    data = file.read(row["size"])
  return np.frombuffer(data, np.uint8).view(dtype).reshape(row["shape"])
