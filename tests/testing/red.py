# SPDX-License-Identifier: Apache-2.0
"""States at a test that it fails without its patch, and with which words.

Nothing happens when a test runs. The tool reads the decorator in the file's
text, and holds both sides to it: on pristine JAX the test fails for the reason,
on the mended one it passes. docs/patches.md has the rules.
"""


def red(reason, *, bases='', cases=None, api_missing=False, also=''):
  """Marks a regression test, or all tests of a class.

  The first that names a test counts, from the top down, those of its class
  last. All arguments are literals, or names that the module gives to some.

  Args:
    reason: a regular expression of the exception, from its type on; where
      releases differ, a dictionary by release.
    bases: the releases on which the test fails; those of the patch if empty.
    cases: of a parameterized test, those that fail: a list of values of its
      first parameter (or of its case's names), or a dictionary from names of
      parameters to a value or a list of values, or a list of such
      dictionaries. A function's value is its name. All cases if None.
    api_missing: whether the report is that a name is missing.
    also: a family of patches without which it fails mended, too, where the
      family mends that release.

  Returns:
    A decorator that leaves its argument as it is.
  """
  del reason, bases, cases, api_missing, also
  return lambda test: test
