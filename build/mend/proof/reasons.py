"""What a test failed for: the exception that ended it, and nothing around it.

A traceback quotes paths, source lines and earlier exceptions, in which almost
any word can be found. What was raised at the end is the type and the message.
"""

from __future__ import annotations

import re

_START = "Traceback (most recent call last)"
_QUALIFIED = re.compile(r"[\w.]+\.(?=\w+(:|$))")


def final(text: str) -> str:
  """The last exception of a failure's text, "Type: message".

  Args:
    text: tracebacks as Python prints them, or words of our own about a
      process that died.

  Returns:
    The type without its module, and the whole message; the text itself where
    it holds no traceback.
  """
  lines = text.splitlines()
  starts = [i for i, line in enumerate(lines) if line.startswith(_START)]
  if not starts:
    return text
  rest = lines[starts[-1] + 1:]
  while rest and (rest[0].startswith(" ") or not rest[0].strip()):
    rest.pop(0)
  return _QUALIFIED.sub("", "\n".join(rest), count=1).strip()


def states(reason: str, text: str) -> bool:
  """Whether the failure ended in what the regular expression `reason` says."""
  return re.search(reason, final(text), re.DOTALL) is not None
