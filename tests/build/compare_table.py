# SPDX-License-Identifier: Apache-2.0
"""Programs with what is true of each: what `compare` must say of them.

The truth was found by running each by hand, stock and mended. The programs that
stock and mended run alike stand in compare_same.
"""

import dataclasses
import pathlib
import re
import textwrap
import time

import compare_programs as programs

HEAD, LOOP = programs.HEAD, programs.LOOP
LOOPS, DLPACK = "varying/loops", "array_api/dlpack"
# A gradient that stock takes for zero: README's.
GRADIENT = LOOP.rpartition("print")[0]
SAME, DIFFERS, FAILED = 0, 1, 2
_VERDICTS = ("The same", "It differs", "It could not be compared")
_COUNTED = ("other values", "other code", "other code, same values",
            "only mended", "only stock", "other output", "another end")


@dataclasses.dataclass(frozen=True)
class Case:
  """A program and its truth.

  Attributes:
    name: says what it shows.
    program: its text, after HEAD.
    bare: whether it has no HEAD.
    code: the exit status of `compare`.
    verdict: what the report begins with.
    kind: of the first row that counts; "" for none.
    patch: that is named for it; "" for none.
    confirmed: whether four runs suffice to confirm it, on each release.
    row: a part of its name.
    says: another part of the report.
    options: of `compare`.
    stdin: what is given; None for a pipe that nobody closes.
    first: the oldest release that it is for.
  """
  name: str
  program: str
  code: int = SAME
  verdict: str = ""
  kind: str = ""
  patch: str = ""
  confirmed: bool = True
  row: str = ""
  says: str = ""
  options: tuple[str, ...] = ()
  stdin: str | None = ""
  first: tuple[int, ...] = (0, 6, 0)
  bare: bool = False

  @property
  def text(self):
    text = textwrap.dedent(self.program).strip("\n") + "\n"
    return text if self.bare or text.startswith(HEAD.strip()) else HEAD + text


def check(runner, case):
  """Holds what `compare` says of a program against the truth."""
  said, facts = runner.compare(case.text, *case.options, "--timeout=100",
                               code=case.code, stdin=case.stdin)
  assert said.startswith(case.verdict or _VERDICTS[case.code]), said
  rows = [r for r in facts["programs"] if r["kind"] in _COUNTED]
  assert case.code == DIFFERS or all(r["again"] for r in rows), said
  assert not case.kind or any(r["kind"] == case.kind for r in rows), said
  assert not case.patch or any(
      r["why"].startswith(case.patch) and r["confirmed"] >= case.confirmed
      for r in rows), said
  assert any(case.row in r["name"] for r in rows) or not case.row, said
  assert re.search(case.says, said), said


def until(true, seconds=60):
  """Waits for something to be true."""
  end = time.monotonic() + seconds
  while not true():
    assert time.monotonic() < end, "it didn't become true"
    time.sleep(.05)


def commands(word):
  """The processes whose command has a word (Linux)."""
  found = []
  for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
      text = path.read_bytes()
    except OSError:  # it has ended
      continue
    if word.encode() in text:
      found.append(text)
  return found


def gradient(body, name, **facts):
  """A case whose program ends in README's gradient, and in `body`."""
  return Case(name, GRADIENT + textwrap.dedent(body), DIFFERS, **{
      "patch": LOOPS, **facts})


# The values that stock and mended return differ in these alone. Each pair of
# expressions, the first on stock, made a sum of words times odd numbers equal.
FLIPS = """
import numpy as np
mended = float(jax.jit(jax.grad(f))(1.0, jnp.arange(4.0))) == 6
def given(one, two):
  return jax.jit(lambda x: x)(two if mended else one)
"""


def flipped(name, setup, one, two):
  wide = "jax.config.update('jax_enable_x64', True)\n"
  return Case(f"digest of {name}", GRADIENT + wide + FLIPS + textwrap.dedent(
                  setup) + f"\ngiven({one}, {two})\n", DIFFERS,
              kind="other values", patch=LOOPS,
              says="other values: .?lambda|not counted: .*given other values")


CASES = [
    # What differs is told.
    gradient("print(jax.jit(jax.grad(f))(1.0, jnp.arange(4.0)))",
             "a gradient, jitted", kind="other values"),
    gradient("print(jax.grad(f)(1.0, jnp.arange(4.0)))", "a gradient, eager",
             says="[Oo]ther output|other output"),
    flipped("even many signs of float64", "x = np.arange(1., 5.)", "x", "-x"),
    flipped("float32's signs at odd places",
            "x = np.arange(1, 5, dtype='f4')", "x",
            "x * np.array([1, -1, 1, -1], 'f4')"),
    flipped("conj of complex64", "x = np.arange(2).astype('c8') + 1j", "x",
            "x.conj()"),
    flipped("-z of complex128", "x = np.arange(1, 2).astype('c16')", "x",
            "-x"),
    flipped("4096 float64 times 4", "x = np.ones((64, 64))", "x", "4 * x"),
    gradient("""
             from jax.experimental import serialize_executable as s
             c = jax.jit(jax.grad(f)).lower(1.0, jnp.arange(4.0)).compile()
             g = s.deserialize_and_load(*s.serialize(c))
             print(g(1.0, jnp.arange(4.0)))
             """, "an executable that was loaded", says="loaded"),
    gradient("jax.jit(jax.grad(f)).lower(1.0, jnp.arange(4.0)).compile()",
             "compiled ahead of time, and never called", kind="other code",
             says="no call of it in common"),
    gradient("jax.jit(jax.grad(f)).lower(1.0, jnp.arange(4.0))",
             "lowered alone", kind="other code", says="lowered, and not run"),
    gradient("""
             print(jax.jit(jax.grad(f)).lower(1.0, jnp.arange(4.0)).as_text())
             """, "lowered text that is printed", kind="other code"),
    Case("a name that stock doesn't have",
         "print(jax.jit(lambda x, y: x).lower(1., 2.).kept_var_idx)", DIFFERS,
         kind="another end", patch="parameter_map/"),
    Case("a name that stock doesn't have, caught", """
         low = jax.jit(lambda x, y: x).lower(1., 2.)
         print(hasattr(low, "kept_var_idx"))
         """, DIFFERS, kind="other output", patch="parameter_map/"),
    gradient("""
             x = jax.eval_shape(lambda: jnp.ones(3))
             mended = jax.jit(jax.grad(f))(1.0, jnp.arange(4.0)) == 6
             print("mended" if mended else "stock", x)
             """, "output that follows", kind="other values"),
    gradient("""
             import sys
             sys.excepthook = lambda *args: print("mine")
             g = float(jax.jit(jax.grad(f))(1.0, jnp.arange(4.0)))
             {0.: {}, 6.: []}[g][3]
             """, "an excepthook of its own", says="IndexError"),
    gradient("""
             g = float(jax.jit(jax.grad(f))(1.0, jnp.arange(4.0)))
             sys.exit(int(g))
             """, "another exit status", says="exit status 6"),
    gradient("""
             import os
             for w in os.urandom(1):
               g = jax.jit(jax.value_and_grad(f))
               print(g(float(w) + 1, jnp.arange(4.0))[1] > 0)
             """, "data without a seed", kind="other code",
             says="not the same twice"),
    gradient("""
             import time
             g = jax.jit(jax.grad(f))
             for _ in range(3):
               print("step", g(1.0, jnp.arange(4.0)), time.time_ns())
             """, "a log with times", kind="other values"),
    gradient("""
             for n in range(3):
               h = lambda w, x: f(w, x) * n
               jax.jit(jax.grad(h) if n == 1 else h)(1.0, jnp.arange(4.0))
             """, "programs of one name at one line", kind="other values"),
    gradient("""
             import numpy as np
             g = jax.jit(jax.grad(f))(1.0, jnp.arange(4.0))
             h = jax.jit(lambda x: x + 1)
             x = np.asarray(g)
             for _ in range(5):
               x = h(x)
             """, "what comes after it isn't counted", kind="other values",
             says="not counted: 1 of the same code, given other values"),
    Case("a copy that shares memory", programs.DLPACK, DIFFERS,
         kind="other output", patch=DLPACK, first=(0, 10, 2)),
    Case("an ahead-of-time compute_on", programs.COMPUTE_ON, DIFFERS,
         kind="only mended", patch="compute_on_ahead/aot", confirmed=False),
    Case("an export of a dictionary", programs.EXPORT, DIFFERS,
         kind="only mended", patch="ahead_of_time/dict_keys"),
    Case("a training loop", programs.TRAINING, DIFFERS, kind="other values",
         patch=LOOPS, row="step"),
    Case("a tolerance that covers it", programs.SIZES, DIFFERS,
         kind="other code, same values", patch=LOOPS, options=("--atol=7",)),
    Case("values beyond the store", programs.SIZES, DIFFERS,
         kind="other values", patch=LOOPS, options=("--store=0",),
         says="beyond --store"),
    gradient("""
             g = float(jax.jit(jax.grad(f))(1.0, jnp.arange(4.0)))
             for n in range(6000):
               print("step", n, "of", 6000, g)
             """, "a long log that differs", kind="other values",
             says="and 5996 more lines"),

    # What never ran.
    Case("a typo in the name", "import no_such_module_at_all\n", FAILED,
         "It could not be compared", says="no_such_module_at_all", bare=True),
    Case("a syntax error", "import jax\ndef f(:\n", FAILED,
         "It could not be compared", says="SyntaxError", bare=True),
    Case("a notebook", '{"cells": [], "metadata": {"n": null}}\n', FAILED,
         "It could not be compared", says="null", bare=True),
    Case("no jax", "print(1 + 1)\n", FAILED, "It could not be compared",
         says="hasn't imported jax", bare=True),
    Case("a missing module after jax", "import jax\nimport no_such_thing\n",
         FAILED, "It could not be compared", says="no_such_thing", bare=True),
    Case("jax in a child alone", """
         import subprocess, sys
         subprocess.run([sys.executable, "-c", "import " + "jax"], check=True)
         """, FAILED, "It could not be compared", says="hasn't imported jax",
         bare=True),
    Case("an end before a program", "import jax\nraise SystemExit(3)\n", FAILED,
         "It could not be compared", bare=True),
]
