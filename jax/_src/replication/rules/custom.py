# SPDX-License-Identifier: Apache-2.0
"""Replication types through custom_jvp and custom_vjp.

The functions of a rule are traced when a derivative is wanted, some of them
long after the call was rewritten. Each is rewritten in turn so that

* a tangent has the type of its primal, and the outputs of ``jvp`` and ``fwd``
  have the types that the primal function gave them;
* what ``bwd`` returns for an argument has that argument's type: a sum over
  the devices along which only the argument is replicated;
* under a predicate that varies, every argument varies along the predicate's
  axes, constants included, so that no such sum is reached by some devices
  only;
* symbolic zeros, and ``None`` for an argument without a cotangent, pass as
  they are.

Limits: a rule whose primal output varies along more axes than the primal
function's keeps its own type.
"""
from __future__ import annotations

from jax._src import ad_util
from jax._src import core
from jax._src import custom_derivatives
from jax._src import linear_util as lu
from jax._src import util
from jax._src.interpreters import ad
from jax._src.interpreters import partial_eval as pe
from jax._src.replication.rules import divergence
from jax._src.replication.rules import flow
from jax._src.replication.rules import reps
from jax._src.replication.rules import tangents
from jax._src.replication.rules import type_rules
from jax.experimental import shard_map as sm

_ZEROS = (ad_util.SymbolicZero, ad.Zero)


def _apart(mesh, vals, in_reps):
  """Casts arguments to vary along the axes of the divergent regions."""
  axes = divergence.axes()
  new_reps = [reps.less(r, axes) for r in in_reps]
  vals = [type_rules.promote(mesh, *a) for a in zip(vals, in_reps, new_reps)]
  return vals, new_reps


@lu.transformation2
def _cast_outputs(f, mesh, axes, out_reps, *args):
  return [type_rules.promote(mesh, x, r, reps.less(r, axes))
          for x, r in zip(f(*args), out_reps())]


def _rewrite_primal(fun, tag, mesh, in_reps):
  """Returns the primal function rewritten, and what gives its outputs' types.

  Where devices diverge, an output that is the same whatever the arguments
  varies, too: it has a cotangent, and a cast that comes after the call would be
  transposed to a sum that some devices only reach.
  """
  fun, out_reps = sm._rewrite_subtrace(fun, tag, mesh, in_reps)
  axes = divergence.axes()
  if not axes:
    return fun, out_reps
  fun = _cast_outputs(fun, mesh, axes, out_reps)
  return fun, lambda: [reps.less(r, axes) for r in out_reps()]


def _stored(thunk):
  """Returns what an auxiliary output holds, or None where it is empty."""
  try:
    return thunk()
  except lu.StoreException:
    return None


def _trace_rewritten(f, tag, mesh, in_reps, args):
  """Runs `f` under the rewrite; an argument whose type is None goes as is.

  So does a constant: a rule may return Python's own as a residual, and look at
  it (equinox: whether a value is perturbed).
  """
  whole = set(mesh.axis_names)
  as_is = lambda a, r: (r is None or isinstance(a, _ZEROS)
                        or r == whole and not isinstance(a, core.Tracer))
  with core.take_current_trace() as parent:
    t = sm.RewriteTrace(parent, tag, mesh)
    args = [a if as_is(a, r) else sm.RewriteTracer(t, r, a)
            for a, r in zip(args, in_reps)]
    with core.set_current_trace(t):
      outs = f(*args)
    vals, out_reps = util.unzip2(
        (x, None) if isinstance(x, _ZEROS) else t.to_val_rep_pair(x)
        for x in outs)
  return list(vals), list(out_reps)


def _match(mesh, x, src, dst):
  return x if src is None else type_rules.promote(mesh, x, src, dst)


@lu.transformation_with_aux2
def _rewrite_jvp(f, store, tag, mesh, in_reps, primal_reps, *args):
  vals, out_reps = _trace_rewritten(f, tag, mesh, in_reps * 2, args)
  primals, tangent_reps = util.split_list(out_reps, [len(out_reps) // 2])
  known = _stored(primal_reps)
  if known:  # what follows was typed without this rule
    vals[len(known):] = map(tangents.mark, vals[len(known):], tangent_reps,
                            known)
  known = known or primals
  axes = divergence.axes()
  dst = [reps.less(reps.meet(*[r for r in rs if r is not None]), axes)
         for rs in zip(primals, known, tangent_reps)]
  store.store(dst)
  return [_match(mesh, *a) for a in zip(vals, out_reps, dst * 2)]


@lu.transformation_with_aux2
def _rewrite_fwd(f, store, tag, mesh, in_reps, primal_reps, *args):
  # The arguments alternate with flags that say which are differentiated.
  in_reps = [r_ for r in in_reps for r_ in (r, None)]
  vals, out_reps = _trace_rewritten(f, tag, mesh, in_reps, args)
  known = _stored(primal_reps)
  if known is not None:
    dst = _with_primals(out_reps, known)
    vals = [_match(mesh, *a) for a in zip(vals, out_reps, dst)]
    out_reps = dst
  store.store(out_reps)
  return vals


def _with_primals(out_reps, known):
  """The types of fwd's outputs, given those of the primal function's."""
  num_res = len(out_reps) - len(known)
  return [*out_reps[:num_res], *map(reps.meet, out_reps[num_res:], known)]


def _rewrite_bwd(bwd, mesh, in_reps, reps_dst, num_outs):
  """Returns `bwd` rewritten to give cotangents of the arguments' types.

  Args:
    bwd: function from residuals and cotangents to cotangents.
    mesh: the mesh of the shard_map.
    in_reps: function that returns the types of its arguments.
    reps_dst: the types of the arguments of the primal function.
    num_outs: function that returns the number of primal outputs.
  """
  def new_bwd(*args):
    vals, out_reps = _trace_rewritten(
        bwd.call_wrapped, core.TraceTag(), mesh, in_reps(), args)
    return [x if r is None else sm._match_replication(r, dst, x)
            for x, r, dst in zip(vals, out_reps, reps_dst)]
  new_bwd = divergence.remembered(new_bwd)
  new_bwd.out_reps = lambda: in_reps()[-num_outs():] if num_outs() else []
  return lu.wrap_init(new_bwd, debug_info=bwd.debug_info)


def _bind_below(trace, prim, values, **params):
  below = trace.parent_trace
  with core.set_current_trace(below):
    return prim.bind(*values, **params)


def _operands(trace, tracers):
  """The values and types of what a rewriting trace is given to process."""
  vals, in_reps = util.unzip2(map(trace.to_val_rep_pair, tracers))
  with core.set_current_trace(trace.parent_trace):
    return _apart(trace.mesh, vals, in_reps)


def process_custom_jvp_call(trace, prim, fun, jvp, tracers, *, symbolic_zeros):
  """Binds a custom_jvp call below the rewriting trace, its rule rewritten."""
  mesh, tag = trace.mesh, trace.tag
  in_vals, in_reps = _operands(trace, tracers)
  fun, out_reps1 = _rewrite_primal(fun, tag, mesh, in_reps)
  jvp, out_reps2 = _rewrite_jvp(
      divergence.remembered_fun(jvp), tag, mesh, in_reps, out_reps1)
  out_vals = _bind_below(trace, prim, [fun, jvp, *in_vals],
                         symbolic_zeros=symbolic_zeros)
  _, out_reps = lu.merge_linear_aux(out_reps1, out_reps2)
  return [sm.RewriteTracer(trace, r, x) for r, x in zip(out_reps, out_vals)]


def process_custom_vjp_call(trace, prim, fun, fwd, bwd, tracers, out_trees,
                            symbolic_zeros):
  """Binds a custom_vjp call below the rewriting trace, its rules rewritten."""
  mesh, tag = trace.mesh, trace.tag
  in_vals, in_reps = _operands(trace, tracers)
  num_outs = lambda: out_trees()[0].num_leaves
  fun, out_reps1 = _rewrite_primal(fun, tag, mesh, in_reps)
  fwd, out_reps2 = _rewrite_fwd(
      divergence.remembered_fun(fwd), tag, mesh, in_reps, out_reps1)
  bwd = _rewrite_bwd(bwd, mesh, out_reps2, in_reps, num_outs)
  out_vals = _bind_below(trace, prim, [fun, fwd, bwd, *in_vals],
                         out_trees=out_trees, symbolic_zeros=symbolic_zeros)
  primal, out_reps = lu.merge_linear_aux(out_reps1, out_reps2)
  if not primal:
    out_reps = out_reps[len(out_reps) - len(out_vals):]
  return [sm.RewriteTracer(trace, r, x) for r, x in zip(out_reps, out_vals)]


def _staged_vjp_rewrite(mesh, in_rep, /, *args, **params):
  args, in_rep = _apart(mesh, args, in_rep)
  primal, out_rep = sm._replication_rewrite_nomatch(
      mesh, params['fun_jaxpr'], in_rep)
  apart = [reps.less(r, divergence.axes()) for r in out_rep]
  if apart != list(out_rep):  # as in _rewrite_primal
    out_rep = apart
    primal = sm._replication_rewrite_match(
        mesh, params['fun_jaxpr'], in_rep, out_rep)
  arg_rep = in_rep[params['num_consts']:]
  fwd_reps = []

  @divergence.remembered
  def rewrite_fwd(*zeros):
    fwd = core.ClosedJaxpr(*params['fwd_jaxpr_thunk'](*zeros))
    new, found = sm._replication_rewrite_nomatch(mesh, fwd, arg_rep)
    dst = _with_primals(found, out_rep)
    if dst != list(found):
      new = sm._replication_rewrite_match(mesh, fwd, arg_rep, dst)
    fwd_reps.append(dst)
    return new.jaxpr, new.consts

  bwd = _rewrite_bwd(params['bwd'], mesh, lambda: fwd_reps[-1], arg_rep,
                     lambda: len(primal.out_avals))
  outs = custom_derivatives.custom_vjp_call_jaxpr_p.bind(*args, **{
      **params, 'fun_jaxpr': primal, 'bwd': bwd,
      'fwd_jaxpr_thunk': pe._memoize(rewrite_fwd)})
  if fwd_reps:  # differentiated at once: these are fwd's outputs
    out_rep = fwd_reps[-1][len(fwd_reps[-1]) - len(out_rep):]
  return outs, out_rep


@flow.register(ad.custom_lin_p)
def _custom_lin(axes, ins, /, *, bwd, **_):
  # A stand-in for the tangents of a custom_vjp function.
  out_reps = getattr(getattr(bwd, 'f', None), 'out_reps', None)
  if out_reps is None:
    return flow.union(axes, ins)
  return [flow.made_flow(axes, set(axes) - r) for r in out_reps()]


def run_primal(trace, fun, tracers):
  """Eager evaluation of a call whose derivative rule is not needed."""
  vals, in_reps = util.unzip2(map(trace.to_val_rep_pair, tracers))
  outs, out_reps = sm._run_shmap(fun, trace.mesh, trace.auto, vals, in_reps,
                                 trace.check, trace.context_mesh)
  return [sm.ShardMapTracer(trace, r, x) for r, x in zip(out_reps, outs)]


sm._rewrite_rules[custom_derivatives.custom_vjp_call_jaxpr_p] = (
    _staged_vjp_rewrite)
