# SPDX-License-Identifier: Apache-2.0
"""The README's command, and with which options tests run."""

import pathlib

from mend.ground import report
from mend.proof import environments, jobs, judging, shares, testing
from mend.releases import bases
import pytest


@pytest.mark.parametrize("version,file,are_older", [
    ("0.7.2", "tests/varying/a_test.py", False),
    ("0.8.0", "tests/varying/a_test.py", True),
    ("0.10.2", "tests/compute_on_ahead/a_test.py", True),
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
def test_the_plain_command_alone_skips_maintenance(
    monkeypatch, asked, is_plain):
  used = []
  monkeypatch.setattr(testing, "_jobs", lambda *a: [])
  monkeypatch.setattr(testing, "finish", lambda *a: None)
  monkeypatch.setattr(testing, "_tool_test",
                      lambda file, env: used.append(file.parent.name)
                      or judging.Tally(1))
  monkeypatch.setattr(testing, "run_jobs",
                      lambda pool, todo, total: used.append("run"))
  testing.run_tests(asked)
  assert "run" in used
  assert ("maintenance" in used) != is_plain
  assert "build" in used


@pytest.mark.parametrize("case", [None, 0, 3])
def test_what_runs_one_case_of_each_test_shares_a_context(monkeypatch, case):
  used = []
  def run_file(*args, options, **kwargs):
    used.append(options)
    return {}
  class Servers:
    def of(self, *args):
      return None
  monkeypatch.setattr(testing.pytest_run, "run_file", run_file)
  job = jobs.Job(bases.get("0.7.2"), "mended",
                 environments.Lazy(lambda: pathlib.Path("p")),
                 "tests/varying/loops_test.py", (), case=case)
  with report.Progress(1) as progress:
    testing._run_job(Servers(), job, progress)
  (options,) = used
  assert ("one_context" in options) == (case is not None)
