# SPDX-License-Identifier: Apache-2.0
"""The forms in which releases have ``compute_on``."""

import jax
from jax._src import compute_on as compute_on_lib


def context_form(f, compute_type='device_host'):
  return compute_on_lib.compute_on(compute_type)(f)


def functional_form(f, compute_type='device_host'):
  # 0.10.2 has both forms and calls this one compute_on2.
  form = getattr(compute_on_lib, 'compute_on2', compute_on_lib.compute_on)
  return form(f, compute_type=compute_type,
              out_memory_spaces=jax.memory.Space.Device)


FORMS = []
if jax.__version_info__ < (0, 11, 1):
  FORMS.append(context_form)
if jax.__version_info__ >= (0, 10, 2):  # the CPU placed no results before
  FORMS.append(functional_form)
