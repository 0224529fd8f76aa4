# SPDX-License-Identifier: Apache-2.0
"""The README's command, and with which options tests run."""

import pathlib

from mend.proof import environments, jobs, judging, shares, testing
from mend.releases import bases
import pytest


@pytest.mark.parametrize("version,file,are_older", [
    ("0.7.2", "tests/varying/a_test.py", False),
    ("0.8.0", "tests/varying/a_test.py", True),
    ("0.10.2", "tests/compute_on/a_test.py", True),
    ("0.10.2", "tests/array_api/a_test.py", False),
    ("0.11.0", "tests/varying/a_test.py", False)])
def test_older_emitters_compile_what_is_not_looked_at(version, file, are_older):
  job = jobs.Job(bases.get(version), "mended",
                 environments.Lazy(lambda: pathlib.Path("p")), file, ())
  flags = testing._flags(job)["XLA_FLAGS"].split()
  assert "--xla_force_host_platform_device_count=8" in flags
  assert ("--xla_cpu_use_fusion_emitters=false" in flags) == are_older
  assert ("--xla_cpu_parallel_codegen_split_count=1" in flags) == (
      version != "0.7.2")


def request(extent, *names):
  return testing.Request(bases.all_bases(), names, extent=extent)


@pytest.mark.parametrize("asked,is_plain", [
    (request(shares.Extent.PLAIN), True),
    (request(shares.Extent.PLAIN, "tests/build"), False),
    (request(shares.Extent.CHANGE), False),
    (request(shares.Extent.WHOLE), False)])
def test_the_plain_command_alone_shares_a_context_and_skips_maintenance(
    monkeypatch, asked, is_plain):
  used = []
  monkeypatch.setattr(testing, "_jobs", lambda *a: [])
  monkeypatch.setattr(testing, "finish", lambda *a: None)
  monkeypatch.setattr(testing, "_tool_test",
                      lambda file, env: used.append(file.parent.name)
                      or judging.Tally(1))
  monkeypatch.setattr(testing, "run_jobs",
                      lambda pool, todo, total, options: used.append(options))
  testing.run_tests(asked)
  (options,) = [u for u in used if isinstance(u, tuple)]
  assert ("one_context" in options) == is_plain
  assert ("maintenance" in used) != is_plain
  assert "build" in used
