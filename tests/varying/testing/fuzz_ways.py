# SPDX-License-Identifier: Apache-2.0
"""Ways in which a random program calls a function, and values that agree.

Each way is the text of a call of ``{f}`` with the operands ``{0}`` and ``{1}``,
as those of ``calls`` are: what reads a call must tell them apart.
"""

WAYS = {
    'keyword': 'jax.jit(lambda p, q: {f}(p, q))(q={1}, p={0})',
    'default_left_out': ('jax.jit(lambda p, q, n=1.: {f}(p * n, q))'
                         '({0}, {1})'),
    'keyword_only': 'jax.jit(lambda q, *, p: {f}(p, q))({1}, p={0})',
    'static_first': ('jax.jit(lambda n, p, q: {f}(p, q), static_argnums=0)'
                     '(1, {0}, {1})'),
    'static_in_the_middle': ('jax.jit(lambda p, n, q: {f}(p, q), '
                             'static_argnums=1)({0}, 1, {1})'),
    'static_by_name': ('jax.jit(lambda n, p, q: {f}(p, q), '
                       'static_argnames="n")(q={1}, p={0}, n=1)'),
    'method': ('jax.jit(lambda self, *args: self.f(*args), static_argnums=0)('
               'type("Model", (), dict(f=staticmethod({f}))), {0}, {1})'),
    'partial': 'jax.jit(functools.partial({f}, {0}))({1})',
    'pytree': ('jax.jit(lambda s: {f}(s["p"], *s["q"][1]))('
               'dict(p={0}, q=(None, [{1}]), unused=()))'),
    'captured': 'jax.jit(lambda q: {f}({0}, q))({1})',
    'scanned': ('[z[0] for z in lax.scan(lambda c, p: (c, {f}(p, {1})), 0, '
                '{0}[None])[1]]'),
    'scanned_captured': ('[z[1] for z in lax.scan(lambda c, q: (c, {f}({0}, q))'
                         ', 0, jnp.stack([{1}, {1} * .5]), unroll=2)[1]]'),
    'carried': ('[z[1] for z in lax.scan(lambda c, _: ((c[0] * 1., c[1]), '
                '{f}(*c)), ({0}, {1}), None, length=2)[1]]'),
    'operand_of_cond': ('lax.cond(True, lambda p: {f}(p, {1}), '
                        'lambda p: {f}(p, {1}), {0})'),
    'operand_of_switch': ('lax.switch(0, [lambda q, p: {f}(p, q)] * 2, {1}, '
                          '{0})'),
    'jit_of_jit': 'jax.jit(lambda q, p: jax.jit({f})(p, q))({1}, {0})',
}
REMAT_WAYS = {
    'remat_captured': 'jax.checkpoint(lambda q: {f}({0}, q))({1})',
    'remat_static': ('jax.checkpoint(lambda n, p, q: {f}(p, q), '
                     'static_argnums=(0,))(1, {0}, {1})'),
    'remat_named': 'jax.checkpoint(lambda p, q: {f}(p, q))(q={1}, p={0})',
}
CLOSED_WAYS = {  # of a function that reads nothing but its arguments
    'custom_jvp_named': ('custom(jax.custom_jvp, lambda p, q: {f}(p, q), '
                         'lambda p, t: jax.jvp({f}, p, t))(q={1}, p={0})'),
    'custom_vjp_named': ('custom(jax.custom_vjp, lambda p, q: {f}(p, q), '
                         'lambda *p: ({f}(*p), p), lambda r, t: '
                         'jax.vjp({f}, *r)[1](t))(q={1}, p={0})'),
    'custom_vjp_default': ('custom(jax.custom_vjp, lambda p, q, n=1.: {f}(p, '
                           'q), lambda *p: ({f}(*p[:2]), p), lambda r, t: '
                           '(*jax.vjp({f}, *r[:2])[1](t), 0.))({0}, {1})'),
    'custom_vjp_nondiff': ('custom(functools.partial(jax.custom_vjp, '
                           'nondiff_argnums=(0,)), lambda n, p, q: {f}(p, q), '
                           'lambda n, *p: ({f}(*p), p), lambda n, r, t: '
                           'jax.vjp({f}, *r)[1](t))(1., {0}, {1})'),
}

# Of a name and an axis: what is the same along it, and typed as varying.
SAME = ('lax.all_gather(meet({{0}}), {0!r}).max(0)',
        'lax.all_gather(meet({{0}}), {0!r}, tiled=True)[-3:] * .7',
        'vary(lax.psum(meet({{0}}), {0!r}) * .3)')
