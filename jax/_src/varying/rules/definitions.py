# SPDX-License-Identifier: Apache-2.0
"""The least rule for primitives, as their abstract evaluation is defined.

One hook, where a primitive is given its abstract evaluation rule, finds what
has to be done for it: for JAX's own in the tables below, by the primitive's
name, however late the module that defines it is imported; and for those of
other libraries by this module alone.

A library that adds a primitive (``jax.extend.core.Primitive``) writes an
abstract evaluation rule for shapes and dtypes, mostly without a thought for
``shard_map``. equinox's ``unvmap_any``, the predicate of its loops, gives a
plain ``bool[]``: with the check on, each device's own answer then counts as
the same on all, and loops, branches and gradients that depend on it are wrong.
So a rule that was not defined in the package ``jax`` gets the least rule of
``primitives``: its results vary wherever an operand does, and operands
that vary differently are cast first, which makes gradients right as well.

Limits: a primitive of another library that does make its results the same on
all devices has to say so by a reduction of JAX's own (``lax.pmax``) after it.
Cost: one look at the name of the rule's module when a primitive is defined.
"""
from __future__ import annotations

from collections.abc import Callable

from jax._src.mend import foreign

# JAX's own whose results vary wherever an operand does, and whose operands are
# cast to the union of their axes.
TYPED_BY_OPERANDS = frozenset((
    'rng_bit_generator', 'rng_uniform', 'sort', 'broadcast_to', 'scaled_dot',
    'threefry2x32', 'threefry4x32', 'philox2x32', 'philox4x32',
    # jax.experimental.sparse
    'bcoo_todense', 'bcoo_fromdense', 'bcoo_extract', 'bcoo_transpose',
    'bcoo_dot_general', 'bcoo_dot_general_sampled', 'bcoo_spdot_general',
    'bcoo_sort_indices', 'bcoo_sum_duplicates',
    'bcsr_fromdense', 'bcsr_todense', 'bcsr_extract', 'bcsr_dot_general',
    'coo_fromdense', 'coo_todense', 'coo_matvec', 'coo_matmat', 'coo_spmv',
    'coo_spmm', 'csr_fromdense', 'csr_todense', 'csr_matvec', 'csr_matmat',
    'csr_spmv', 'csr_spmm', 'spsolve', 'todense',
    'sparse_dense_matmul', 'sparse_pack_nm',
    # cuDNN's attention, matrix products and LSTM, and kernels for TPUs
    'dot_product_attention_fwd', 'dot_product_attention_fwd_wrapper',
    'dot_product_attention_bwd', 'dot_product_attention_bwd_wrapper',
    'dot_product_attention_fp8_fwd', 'dot_product_attention_fp8_fwd_wrapper',
    'dot_product_attention_fp8_bwd', 'dot_product_attention_fp8_bwd_wrapper',
    'scaled_matmul', 'scaled_matmul_wrapper', 'bias_fwd', 'bias_bwd',
    'rnn_fwd', 'rnn_bwd', 'tpu_custom_call'))
# The same without a cast: it would be an equation for nothing, as they have no
# gradient, or as an operand (where a reduction starts) is often a constant.
TYPED_WITHOUT_CAST = frozenset((
    'reduce', 'reduce_window', 'pure_callback', 'io_callback',
    'buffer_callback'))
# Those that type themselves, once their operands vary over the same axes.
CAST_ONLY = frozenset(('eq_to', 'le_to', 'lt_to', 'polynomial'))
# Those whose results each device answers by itself.
DEVICE_DEPENDENT = frozenset(('rng_uniform',))


def enter(prim, rule: Callable) -> None:
  """Does what a primitive needs whose rule has just been defined.

  Args:
    prim: the primitive.
    rule: what it was given as its abstract evaluation, which may be defined
      more than once.
  """
  others = foreign.is_foreign(rule)
  foreign.define(prim, others)
  if others:
    _type_by_union(prim, cast=True)
  else:
    _enter_own(prim)


def _enter_own(prim) -> None:
  if prim.name in TYPED_BY_OPERANDS or prim.name in TYPED_WITHOUT_CAST:
    _type_by_union(prim, cast=prim.name in TYPED_BY_OPERANDS)
  if prim.name in CAST_ONLY:
    from jax._src.varying.rules import primitives  # it imports core
    primitives.bind_after_cast(prim)
  if prim.name in DEVICE_DEPENDENT:
    from jax._src.varying.rules import device_dependent  # it imports core
    device_dependent.vary_along_all_axes(prim)


def _type_by_union(prim, cast: bool) -> None:
  from jax._src.varying.rules import primitives  # it imports core
  # Where its rule is defined once more, it casts already.
  known = prim in primitives.typed_by_union
  primitives.type_by_union(prim, cast=cast and not known)
