# SPDX-License-Identifier: Apache-2.0
"""The reason of a test's failure: the exception that ended it, no more.

A traceback quotes paths, source lines and earlier exceptions, in which almost
any word can be found. What was raised at the end is the type and the message,
and the function that raised it: an assertion of JAX's own and a missing key
have no more to say.
"""

from __future__ import annotations

import re

_START = "Traceback (most recent call last)"
_FRAME = re.compile(r'  File "(?:.*[/\\])?([^/\\"]+)\.py", line \d+, in (\S+)')
_CHECKS = ("case", "absltest")  # a test's own assertions
_QUALIFIED = re.compile(r"\A[\w.]+\.(?=\w+(:|$))", re.M)


def final(text: str) -> str:
  """The last exception of a failure's text, "Type: message".

  Args:
    text: tracebacks as Python prints them, or words of our own about a
      process that died.

  Returns:
    The type without its module, the whole message, and ", raised by
    file.function", but for a test's own assertions. The text itself where it
    holds no traceback.
  """
  lines = text.splitlines()
  starts = [i for i, line in enumerate(lines) if line.startswith(_START)]
  if not starts:
    return text
  rest, frame = lines[starts[-1] + 1:], None
  while rest and (rest[0].startswith(" ") or not rest[0].strip()):
    frame = _FRAME.match(rest.pop(0)) or frame
  said = _QUALIFIED.sub("", "\n".join(rest), count=1).strip()
  if frame and frame[1] not in _CHECKS:
    said += ", " if ": " in said else ": "
    said += f"raised by {frame[1]}.{frame[2]}"
  return said


def states(reason: str, text: str) -> bool:
  """True if the failure's last exception matches the expression `reason`."""
  return re.search(reason, final(text), re.DOTALL) is not None
