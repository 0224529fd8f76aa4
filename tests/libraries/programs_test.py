# SPDX-License-Identifier: Apache-2.0
"""A program of each library that people use with JAX, in five ways.

Plain, jitted, under vmap, differentiated, and inside of shard_map with the
check on, where an argument differs from device to device and another one is
shared, over two devices and over one. The oracle is the plain program on each
device's argument.
"""
import importlib

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

try:
  shard_map = jax.shard_map
except AttributeError:  # before 0.7
  from jax.experimental.shard_map import shard_map

N = 2
W = np.linspace(.6, 1.4, 3, dtype=np.float32)  # shared
X = np.random.RandomState(0).uniform(.5, 1.5, (N, 3)).astype(np.float32)


def _load(name):
  return importlib.import_module(name)


def _quadratic(p, w, x):
  return jnp.sum(w * (p - x) ** 2) + .1 * jnp.sum(jnp.cos(p))


def lineax(w, x):
  lx = _load('lineax')
  operator = lx.FunctionLinearOperator(
      lambda v: w * v + .1 * jnp.sum(v), jax.eval_shape(lambda: x),
      lx.positive_semidefinite_tag)
  dense = lx.MatrixLinearOperator(jnp.diag(x) + .1 * jnp.outer(w, w))
  solver = lx.CG(rtol=1e-6, atol=1e-6)
  return (lx.linear_solve(operator, x, solver).value +
          lx.linear_solve(dense, w, lx.LU()).value)


def optimistix(w, x):
  optx = _load('optimistix')
  def residual(p, args):
    return p - .3 * jnp.cos(p) * args[0] - args[1]
  return optx.root_find(residual, optx.Newton(1e-5, 1e-5), x, args=(w, x),
                        max_steps=16).value


def diffrax(w, x):
  dfx = _load('diffrax')
  term = dfx.ODETerm(lambda t, y, args: -args * y)
  return dfx.diffeqsolve(term, dfx.Tsit5(), 0., 1., .25, x, w,
                         max_steps=8).ys[-1]


def diffrax_adaptive(w, x):
  # Each device takes steps of its own; the default adjoint's rule, which gives
  # symbolic zeros, holds others that differentiate by what devices share.
  dfx = _load('diffrax')
  term = dfx.ODETerm(lambda t, y, args: -args * y)
  return dfx.diffeqsolve(term, dfx.Tsit5(), 0., 1., .25, x, w, max_steps=8,
                         stepsize_controller=dfx.PIDController(1e-2, 1e-2)
                         ).ys[-1]


def equinox(w, x):
  eqx, eqxi = _load('equinox'), _load('equinox.internal')
  layer = eqx.nn.Linear(3, 3, key=jax.random.key(0))
  layer = eqx.tree_at(lambda l: l.bias, layer, w)
  def body(carry):
    return layer(jnp.tanh(carry[0])) * x, carry[1] + 1
  return eqxi.while_loop(lambda c: c[1] < 3, body, (x, 0), max_steps=4,
                         kind='checkpointed')[0]


def flax_linen(w, x):
  nn = _load('flax.linen')
  class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
      return nn.LayerNorm()(nn.Dense(3)(nn.relu(nn.Dense(4)(x))))
  net = Net()
  params = net.init(jax.random.key(0), jnp.ones(3))
  return w * net.apply(params, x)


def flax_nnx(w, x):
  nnx = _load('flax.nnx')
  layer = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
  graph, state = nnx.split(layer)
  return w * nnx.merge(graph, state)(x)


def optax(w, x):
  tx = _load('optax').lbfgs(linesearch=None, learning_rate=.1)
  p = 0. * x + 0. * w
  def step(carry, _):
    p, state = carry
    value, g = jax.value_and_grad(_quadratic)(p, w, x)
    update, state = tx.update(g, state, p, value=value, grad=g)
    return (p + update, state), None
  return lax.scan(step, (p, tx.init(p)), None, length=3)[0][0]


def numpyro(w, x):
  npyro, dist = _load('numpyro'), _load('numpyro.distributions')
  log_density = _load('numpyro.infer.util').log_density
  def model(x):
    z = npyro.sample('z', dist.Normal(jnp.zeros(3), 1.).to_event(1))
    npyro.sample('o', dist.StudentT(4., z, .5).to_event(1), obs=x)
  return x * log_density(model, (x,), {}, {'z': w})[0]


def blackjax(w, x):
  bj = _load('blackjax')
  kernel = bj.nuts(lambda p: -_quadratic(p, w, x), step_size=.2,
                   inverse_mass_matrix=jnp.ones(3), max_num_doublings=3)
  def step(state, key):
    return kernel.step(key, state)[0], None
  start = kernel.init(0. * x + 0. * w)
  keys = jax.random.split(jax.random.key(0), 2)
  return lax.scan(step, start, keys)[0].position


def jaxopt(w, x):
  return _load('jaxopt').GradientDescent(
      _quadratic, maxiter=20, stepsize=.2, acceleration=False).run(
          0. * x + 0. * w, w, x).params


def distrax(w, x):
  dx = _load('distrax')
  return (dx.Normal(w, x).log_prob(1.) +
          dx.MixtureSameFamily(dx.Categorical(logits=x),
                               dx.Normal(w, jnp.ones(3))).log_prob(.3))


def haiku(w, x):
  hk = _load('haiku')
  net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([4, 3])(x)))
  return w * net.apply(net.init(jax.random.key(0), jnp.ones(3)), x)


def chex(w, x):
  cx = _load('chex')
  cx.assert_trees_all_equal_shapes_and_dtypes(w, x)
  cx.assert_tree_shape_prefix({'w': w, 'x': x}, (3,))
  return w * x


def jaxtyping(w, x):
  jt, checker = _load('jaxtyping'), _load('beartype').beartype
  vector = jt.Float[jax.Array, 'n']
  def product(w: vector, x: vector) -> vector:
    return w * x
  return jt.jaxtyped(typechecker=checker)(product)(jnp.asarray(w),
                                                   jnp.asarray(x))


def array_api_compat(w, x):
  xp = _load('array_api_compat').array_namespace(jnp.asarray(x))
  return xp.concat([w, x]) * xp.linalg.vector_norm(x)


def array_api_extra(w, x):
  xpx = _load('array_api_extra')
  return xpx.cov(xpx.atleast_nd(jnp.stack([w, x]), ndim=2, xp=jnp))


PROGRAMS = (lineax, optimistix, diffrax, diffrax_adaptive, equinox,
            flax_linen, flax_nnx, optax,
            numpyro, blackjax, jaxopt, distrax, haiku, chex, jaxtyping,
            array_api_compat, array_api_extra)
SAMPLERS = (blackjax,)  # not a differentiable function of its data


class ProgramsTest(parameterized.TestCase):

  @parameterized.named_parameters((f.__name__, f) for f in PROGRAMS)
  def test_program(self, f):
    plain = [f(jnp.asarray(W), jnp.asarray(x)) for x in X]
    close = lambda got, want: np.testing.assert_allclose(
        got, want, rtol=2e-3, atol=2e-4)
    close(jax.jit(jax.vmap(f, (None, 0)))(W, X), np.stack(plain))
    def shard(f, out, n=N):
      mesh = Mesh(np.array(jax.devices()[:n]), ('x',))
      return jax.jit(shard_map(f, mesh=mesh, in_specs=(P(), P('x')),
                               out_specs=out))
    row = lambda w, x: f(w, x[0])[None]
    close(shard(row, P('x'))(W, X), np.stack(plain))
    if f in SAMPLERS:
      close(jax.jit(f)(W, X[0]), plain[0])
      close(shard(row, P('x'), 1)(W, X[:1]), np.stack(plain[:1]))
      return
    # With the values, which then need no program of their own.
    both = jax.jit(jax.value_and_grad(
        lambda w, x: (jnp.sum(y := f(w, x)), y), (0, 1), has_aux=True))
    values, dw, dx = zip(*((y, *g) for (_, y), g in (both(W, x) for x in X)))
    close(np.stack(values), np.stack(plain))
    for n in N, 1:  # people debug on one device
      if jax.__version_info__ >= (0, 6):
        got = shard(lambda w, x: jax.grad(
            lambda w, x: jnp.sum(f(w, x[0])), (0, 1))(w, x),
                    (P(), P('x')), n)(W, X[:n])
      else:  # each device's own, there: what is shared is summed outside
        got = jax.grad(lambda w, x: jnp.sum(shard(row, P('x'), n)(w, x)),
                       (0, 1))(W, X[:n])
      close(got[0], sum(dw[:n]))  # all devices contribute to what they share
      close(got[1], np.stack(dx[:n]))


if __name__ == '__main__':
  absltest.main()
