# SPDX-License-Identifier: Apache-2.0
"""Addresses of the pages about what Mend refuses.

An error of Mend's own ends with the section of the page that says why and what
to write, as JAX's errors end with a link to JAX's documentation.

Limits: the repository has no address on the web yet, so that a path in it is
what a message can name. A user of a wheel has the repository's address from
where the wheel was installed from: ``pip freeze`` shows it.
"""
from __future__ import annotations

# An address that ends in a slash, as soon as the pages have one on the web.
ROOT = ''


def see(section: str) -> str:
  """The last line of a refusal.

  Args:
    section: a page in ``docs`` and the anchor of one of its headings, such as
      ``varying.md#refs``. A literal: the tests look for the heading.
  """
  return f"\nSee {ROOT or 'Mend, '}docs/{section}"
