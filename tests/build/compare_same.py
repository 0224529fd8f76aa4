# SPDX-License-Identifier: Apache-2.0
"""Programs of which `compare` must blame nothing on Mend."""

import compare_programs as programs
from compare_table import Case, FAILED

CASES = [
    Case("nothing", "print(jnp.arange(3) + 1)"),
    Case("no program", "import jax\nprint(len(jax.devices()))\n", bare=True),
    Case("an error on both, after a program", """
         print(jnp.arange(3) + 1)
         raise ValueError("the same")
         """, says="ValueError at"),
    Case("an address in an error", """
         print(jnp.arange(3) + 1)
         raise ValueError(f"{object()} is odd")
         """),
    Case("an address in the output", "print(object(), jnp.sin(1.))"),
    Case("a time in the output", """
         import time
         for n in range(3):
           print("step", n, float(jnp.sin(1.)), time.time_ns(), flush=True)
         """),
    Case("a random number of lines", """
         import os
         for _ in range(os.getpid() % 50 + 1):
           print(jnp.sin(1.))
         """, FAILED, "It could not be compared"),
    Case("a random exit status", """
         import os
         jnp.sin(1.)
         os._exit(os.urandom(1)[0])
         """, FAILED, "It could not be compared"),
    Case("random arguments", programs.RANDOM, FAILED,
         "It could not be compared", says="has the same code mended"),
    Case("a checkpoint that the next run goes on from", """
         import os
         w = jnp.zeros(4)
         if os.path.exists("resumed.npy"):
           w = jnp.load("resumed.npy")
         jnp.save("resumed.npy", jax.jit(lambda w: w + jnp.arange(4.))(w))
         """, FAILED, "It could not be compared", says="files that it leaves"),
    Case("a loader thread", """
         import threading, time, random
         def load():
           for n in range(30):
             jax.jit(lambda x: x * n)(jnp.ones(n % 5 + 1))
             time.sleep(random.random() / 200)
         threads = [threading.Thread(target=load) for _ in range(4)]
         [t.start() for t in threads]
         for n in range(10):
           jax.jit(lambda x: x - n)(jnp.ones(3))
         [t.join() for t in threads]
         """),
    Case("many threads, one program", """
         import threading
         f = jax.jit(lambda x: jnp.sin(x))
         threads = [threading.Thread(target=lambda n=n: f(float(n)))
                    for n in range(20)]
         [t.start() for t in threads]
         [t.join() for t in threads]
         """),
    Case("forked children", """
         import multiprocessing, os, random
         def work(n):
           return sum(random.random() for _ in range(n))
         if __name__ == "__main__":
           with multiprocessing.get_context("fork").Pool(3) as pool:
             pool.map(work, range(9))
           print(jnp.sin(1.))
         """),
    Case("a forked child that computes", """
         import os
         if not os.fork():
           print(jax.eval_shape(lambda: jnp.ones(os.getpid() % 97 + 1)).ndim)
           os._exit(0)
         os.wait()
         jnp.cos(1.)
         """),
    Case("spawned children", """
         import multiprocessing
         def work(n):
           import jax.numpy as jnp
           return float(jnp.sin(n))
         if __name__ == "__main__":
           with multiprocessing.get_context("spawn").Pool(1) as pool:
             print(pool.map(work, [1., 2.]))
           print(jnp.sin(1.))
         """),
    Case("a donated argument", """
         f = jax.jit(lambda x: x + 1, donate_argnums=0)
         x = jnp.zeros(5)
         for _ in range(4):
           x = f(x)
         print(x)
         """),
    Case("random keys", """
         key = jax.random.key(0)
         for k in jax.random.split(key, 3):
           print(jax.random.normal(k, (2,)))
         """),
    Case("nan, infinity and minus zero",
         "print(jax.jit(lambda x: (x / 0, 0 * -x))(jnp.array([0., 1., -1.])))"),
    Case("bfloat16, int4 and bool", """
         for t in (jnp.bfloat16, jnp.int8, bool, jnp.uint4):
           print(jax.jit(lambda x: x.astype(t))(jnp.arange(3)).dtype)
         """),
    Case("empty arrays", "jax.jit(lambda x: x * 2)(jnp.zeros((0, 3)))"),
    Case("a callback", """
         import numpy as np
         f = jax.jit(lambda x: jax.pure_callback(np.sin, x, x))
         print(f(jnp.float32(1.)))
         """),
    Case("a jitted call in a callback", """
         import numpy as np
         g = jax.jit(lambda x: jnp.sin(x))
         f = jax.jit(lambda x: jax.debug.callback(lambda y: None, x) or x)
         print(f(jnp.float32(1.)))
         """),
    Case("pmap", "print(jax.pmap(lambda x: x * 2)(jnp.arange(4.)))"),
    Case("a sharded program", """
         from jax.sharding import NamedSharding
         x = jax.device_put(jnp.arange(8.), NamedSharding(mesh, P("x")))
         print(jax.jit(lambda x: x.sum())(x))
         """),
    Case("a sum in shard_map", """
         f = shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=P("x"),
                       out_specs=P())
         print(jax.jit(f)(jnp.arange(4.)))
         """),
    Case("arguments and standard input", programs.SAME, stdin="given\n"),
    Case("standard input that nobody closes", "print(jnp.sin(1.))",
         stdin=None),
    Case("a program that ends by a signal", """
         import os, signal
         print(jnp.sin(1.), flush=True)
         os.kill(os.getpid(), signal.SIGKILL)
         """, says="signal 9"),
    Case("a grandchild that stays", """
         import subprocess, sys
         print(jnp.sin(1.))
         subprocess.Popen([sys.executable, "-c", "import time; "
                           "print('stays'); time.sleep(987)"])
         """),
    Case("many small calls", """
         f = jax.jit(lambda x: x + 1)
         x = jnp.float32(0)
         for _ in range(2000):
           x = f(x)
         print(x)
         """),
    Case("a long log", """
         for n in range(6000):
           print("step", n, "of", 6000)
         print(jnp.sin(1.))
         """),
]
