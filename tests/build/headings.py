# SPDX-License-Identifier: Apache-2.0
"""Headings of pages, and the anchors that GitHub makes of them."""

import re


def without_code(page):
  return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"),
                flags=re.DOTALL | re.MULTILINE)


def anchors(page):
  """The anchors of a page's headings, as GitHub makes them."""
  titles = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
  return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
          for title in titles}
