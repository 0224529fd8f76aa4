# SPDX-License-Identifier: Apache-2.0
"""The lines of a program as text and as a page of HTML.

The page is one file: it loads nothing, and has no script. A notebook shows the
same part of it. Each axis has a colour, and its name beside.
"""
from __future__ import annotations

import html
import linecache
from typing import Any

from jax._src.sanitizer import lines as lines_lib
from jax._src.sanitizer import reasons

_GAP = 3  # lines without anything that are shown between others
_SAME = 'same'
_KINDS = {'cast': 'cast to vary over', 'own': 'cast to vary over',
          'sum': 'summed over'}
_COLOURS = ('#0b6fb8', '#b04a00', '#1d7a3e', '#8a3fb0', '#a3243b', '#5b6400')


def _axes(axes: tuple) -> str:
  return ', '.join(map(str, axes)) or _SAME


def _column(line: lines_lib.Line | None) -> list[tuple]:
  """The sets of axes that a line's values vary over, each once, in order."""
  if line is None:
    return []
  return list(dict.fromkeys(v.axes for v in line.shown()))


def _notes(line: lines_lib.Line | None) -> list[tuple[str, str]]:
  """The notes below a line: kinds and sentences."""
  if line is None:
    return []
  found = [(r.kind, f'{r.what} {_KINDS[r.kind]} {reasons.quoted(r.axes)}: '
            f'{r.text}') for r in line.reasons]
  found += [('unknown', f'nothing is known of `{n}`: taken to vary over all')
            for n in line.unknown]
  return found


def _numbered(lines: dict[int, lines_lib.Line]) -> list[int | None]:
  """The numbers of the lines to show; None for those left out between.

  Before the first of some stands one more: that of the function, mostly.
  """
  shown: list[int | None] = []
  last = None
  for number in lines:
    if last is not None and number - last - 1 <= _GAP:
      shown += range(last + 1, number)
    else:
      shown += [None] * (last is not None) + [number - 1] * (number > 1)
    shown.append(number)
    last = number
  return shown


def text(program: lines_lib.Program) -> str:
  """The program as text, for a terminal."""
  out: list[str] = []
  if not program.maps and not program.files:
    return 'jax.debug.show_varying: no shard_map in this function.'
  for m in program.maps:
    out.append(f'shard_map over {{{m.mesh}}} at {m.where}')
    out += [f'  {n}: {v.type} {_spoken(v.axes)}' for n, v in m.arguments]
    out += [f'  -> {v.type} {_spoken(v.axes)}' for v in m.results]
  for name, lines in program.files.items():
    columns = {n: ' | '.join(map(_axes, _column(line)))
               for n, line in lines.items()}
    wide = max(len('varies over'), *map(len, columns.values()))
    digits = max(4, len(str(max(lines))))
    out += ['', name, f"{'line':>{digits}}  {'varies over':<{wide}}  program"]
    for number in _numbered(lines):
      if number is None:
        out.append(f"{'...':>{digits}}")
        continue
      code = linecache.getline(name, number).rstrip('\n')
      column = columns.get(number, '')
      out.append(f'{number:>{digits}}  {column:<{wide}}  {code}'.rstrip())
      indent = ' ' * (digits + wide + 4 + len(code) - len(code.lstrip()))
      out += [f'{indent}^ {said}' for _, said in _notes(lines.get(number))]
  return '\n'.join(out)


def _spoken(axes: tuple) -> str:
  return (f'varies over {reasons.quoted(axes)}' if axes
          else 'is the same on all devices')


def page(program: lines_lib.Program) -> str:
  """The program as a page of HTML that needs nothing else."""
  return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
          '<meta name="viewport" content="width=device-width">\n'
          '<title>What varies between devices</title></head>\n'
          f'<body style="margin:0">\n{fragment(program)}\n</body></html>\n')


def fragment(program: lines_lib.Program) -> str:
  """The part of the page that a notebook shows."""
  colour = {a: _COLOURS[n % len(_COLOURS)]
            for n, a in enumerate(program.names)}
  out = [f'<style>{_STYLE}</style>', '<div class="jax-varying">', '<p>']
  out += [_chip((a,), colour) for a in program.names]
  out.append(f'{_chip((), colour)}: what a value varies over, or that it is '
             'the same on all devices</p>')
  out += [_map(m, colour) for m in program.maps]
  for name, lines in program.files.items():
    out += [f'<h2>{html.escape(name)}</h2>', '<table>',
            '<tr><th>line</th><th>varies over</th><th>program</th></tr>']
    for number in _numbered(lines):
      out += _row(name, number, lines.get(number or 0), colour)
    out.append('</table>')
  return '\n'.join([*out, '</div>'])


def _chip(axes: tuple, colour: dict[Any, str]) -> str:
  if not axes:
    return f'<span class="chip same">{_SAME}</span>'
  return ''.join(f'<span class="chip" style="background:{colour[a]}">'
                 f'{html.escape(str(a))}</span>' for a in axes)


def _map(m: lines_lib.Map, colour: dict[Any, str]) -> str:
  items = [f'<li><code>{html.escape(n)}: {html.escape(v.type)}</code> '
           f'{_chip(v.axes, colour)}</li>' for n, v in m.arguments]
  items += [f'<li>&rarr; <code>{html.escape(v.type)}</code> '
            f'{_chip(v.axes, colour)}</li>' for v in m.results]
  return (f'<h2>shard_map over {{{html.escape(m.mesh)}}} at '
          f'{html.escape(m.where)}</h2><ul>{"".join(items)}</ul>')


def _row(name: str, number: int | None, line: lines_lib.Line | None,
         colour: dict[Any, str]) -> list[str]:
  if number is None:
    return ['<tr class="gap"><td>&hellip;</td><td></td><td></td></tr>']
  code = linecache.getline(name, number).rstrip('\n')
  chips = ' '.join(f'<span class="set">{_chip(a, colour)}</span>'
                   for a in _column(line))
  types = '\n'.join(f'{v.name}: {v.type} {_spoken(v.axes)}'
                    for v in (line.shown() if line else []))
  rows = [f'<tr class="line" title="{html.escape(types)}"><td>{number}</td>'
          f'<td>{chips}</td><td><code>{html.escape(code)}</code></td></tr>']
  indent = len(code) - len(code.lstrip())
  rows += [f'<tr class="note {kind}"><td></td><td></td>'
           f'<td style="padding-left:{indent + 2}ch">{html.escape(said)}</td>'
           '</tr>' for kind, said in _notes(line)]
  return rows


_STYLE = """
.jax-varying{color-scheme:light;background:#fff;color:#1a1a1a;padding:1em;
font:14px/1.5 system-ui,sans-serif;overflow-x:auto}
.jax-varying h2{font-size:1em;margin:1.2em 0 .3em;overflow-wrap:anywhere}
.jax-varying ul{margin:0;padding-left:1.5em}
.jax-varying table{border-collapse:collapse;width:100%}
.jax-varying th,.jax-varying td{text-align:left;vertical-align:top;
padding:0 .6em;background:none}
.jax-varying th{color:#595959;font-weight:normal;border-bottom:1px solid #ccc}
.jax-varying td:first-child{color:#595959;text-align:right;width:1%}
.jax-varying td:nth-child(2){white-space:nowrap;width:1%}
.jax-varying td:nth-child(3){font-family:ui-monospace,monospace}
.jax-varying code{font:13px/1.5 ui-monospace,monospace;white-space:pre-wrap}
.jax-varying .chip{color:#fff;border-radius:.7em;padding:0 .55em;margin:0 .1em;
font:12px/1.5 ui-monospace,monospace;display:inline-block}
.jax-varying .same{background:#e4e4e4;color:#333}
.jax-varying .set+.set:before{content:"| ";color:#595959}
.jax-varying .note td{font:13px/1.5 system-ui,sans-serif;color:#444;
background:#fff6d6}
.jax-varying .note.own td{background:#f2f2f2}
.jax-varying .note.sum td{background:#e2f1e6}
.jax-varying .note.unknown td{background:#fde5e5}
"""
