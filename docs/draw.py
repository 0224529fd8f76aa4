# SPDX-License-Identifier: Apache-2.0
"""Draws docs/types.svg: `python3 docs/draw.py` writes it again.

How the type of a value flows through a loop, and why the sum over devices that
a gradient takes must stand outside of a branch.
"""

import pathlib

PICTURE = pathlib.Path(__file__).with_name("types.svg")
INK, FAINT, PAPER = "#24292f", "#8c959f", "#ffffff"
SAME, VARIES, BAD = "#ddf4ff", "#fff8c5", "#ffebe9"
WIDTH, HEIGHT = 860, 560
_HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" \
height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" \
aria-labelledby="t" font-family="ui-sans-serif, Helvetica, Arial, sans-serif" \
font-size="14" fill="{INK}">
<title id="t">A carry takes on what the predicate varies over; the sum over \
devices stands outside of a branch</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" \
markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="{INK}"/></marker>\
</defs>
<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>
"""


def text(x, y, words, size=14, anchor="start", colour=INK, weight="normal"):
  words = words.replace("&", "&amp;").replace("<", "&lt;")
  return (f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" '
          f'fill="{colour}" font-weight="{weight}">{words}</text>')


def box(x, y, width, height, lines, fill):
  """A box with lines of text in its middle."""
  drawn = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" '
           f'fill="{fill}" stroke="{INK}"/>']
  top = y + height / 2 + 5 - 9 * (len(lines) - 1)
  drawn += [text(x + width / 2, top + 18 * i, line, anchor="middle")
            for i, line in enumerate(lines)]
  return "\n".join(drawn)


def arrow(*points, colour=INK):
  path = " ".join(f"{x},{y}" for x, y in points)
  return (f'<polyline points="{path}" fill="none" stroke="{colour}" '
          'stroke-width="1.5" marker-end="url(#tip)"/>')


def legend():
  parts = []
  for x, fill, words in ((30, SAME, "the same on every device"),
                         (260, VARIES, "varies over the mesh axis x")):
    parts += [f'<rect x="{x}" y="14" width="22" height="14" rx="3" '
              f'fill="{fill}" stroke="{INK}"/>', text(x + 30, 26, words)]
  return parts


def loop():
  """The upper half: the while_loop of the README."""
  return [
      text(30, 66, "A loop that each device leaves at its own time", 16,
           weight="bold"),
      box(30, 92, 120, 52, ["0.0", "f32[]"], SAME),
      arrow((150, 118), (196, 118)),
      box(200, 92, 120, 52, ["cast", "f32[]{x}"], VARIES),
      text(260, 160, "nothing at run time", 12, "middle", FAINT),
      arrow((320, 118), (378, 118)),
      f'<rect x="360" y="82" width="330" height="150" rx="8" fill="none" '
      f'stroke="{FAINT}" stroke-dasharray="5 4"/>',
      text(525, 250, "lax.while_loop", 12, "middle", FAINT),
      box(382, 96, 120, 46, ["n, the carry", "f32[]{x}"], VARIES),
      arrow((502, 119), (546, 119)),
      box(550, 96, 120, 46, ["n + 1", "f32[]{x}"], VARIES),
      arrow((610, 96), (610, 88), (442, 88), (442, 94)),
      box(382, 172, 120, 46, ["n < x[0]", "bool[]{x}"], VARIES),
      arrow((442, 142), (442, 170)),
      arrow((502, 195), (610, 195), (610, 144)),
      text(556, 188, "runs it again?", 12, "middle"),
      box(200, 172, 120, 46, ["x[0]", "0 | 1 | 2 | 3"], VARIES),
      arrow((320, 195), (380, 195)),
      arrow((670, 119), (716, 119)),
      box(720, 92, 110, 52, ["steps", "f32[]{x}"], VARIES),
      text(775, 164, "0 | 1 | 2 | 3", 12, "middle"),
      text(30, 278, "The body alone would say f32[]: 0.0 + 1 is the same "
           "everywhere. How often it runs is not,"),
      text(30, 297, "so what it changes takes on what the predicate varies "
           "over. Stock JAX says f32[], and the"),
      text(30, 316, "gradient of w * steps is one device's: 0 and not 6."),
  ]


def branch(left, title, inside):
  """One picture of the backward pass of `cond(x[0] > 1, w * x[0], ...)`."""
  parts = [text(left, 382, title, 14, weight="bold")]
  for i in range(4):
    y = 398 + 28 * i
    taken = i > 1
    parts.append(text(left, y + 15, f"device {i}", 12))
    parts.append(box(left + 66, y, 92, 21,
                     [f"{i}.0" if taken else "not taken"],
                     VARIES if taken else PAPER))
    end = left + 292
    if inside and taken:
      parts.append(box(left + 164, y, 62, 21, ["sum ?"], BAD))
    if not inside:
      parts.append(arrow((left + 158, y + 10), (end - 60, y + 10)))
      parts.append(text(left + 174, y + 7, f"{i}.0" if taken else "0.0", 11))
  x = left + 62
  parts.append(f'<rect x="{x}" y="392" width="{170 if inside else 104}" '
               f'height="119" rx="8" fill="none" stroke="{FAINT}" '
               'stroke-dasharray="5 4"/>')
  if inside:
    parts.append(text(left + 245, 450, "waits for 0 and 1,", 13))
    parts.append(text(left + 245, 468, "which never come", 13))
  else:
    parts.append(box(left + 234, 396, 54, 109, ["sum", "5.0"], SAME))
    parts.append(text(left + 296, 450, "the gradient of w,", 13))
    parts.append(text(left + 296, 468, "on every device", 13))
  return parts


def picture():
  """The whole drawing, as text."""
  parts = [*legend(), *loop(),
           text(30, 352, "The gradient of a shared w that some devices read "
                "in a branch, x[0] > 1", 16, weight="bold"),
           *branch(30, "sum inside of the branch", inside=True),
           *branch(430, "sum outside of it", inside=False),
           text(30, 540, "So w is cast to f32[]{x} before the branch: the "
                "transpose of that cast is the sum.")]
  return _HEAD + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
  PICTURE.write_text(picture(), encoding="utf-8")
