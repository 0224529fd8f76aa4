"""Wrong arguments: each command says what is wrong and what to run next."""

from mend import bases, cli
import pytest


@pytest.mark.parametrize("line,wrong,following", [
    ("build --base=1", "not a base release", "--base=V"),
    ("build --wheels=jaxlib", "only jax", "build --wheels=jax"),
    ("build --patches=nope", "no patch 'nope'", "choose"),
    ("build --patches=compute-on-errors", "depends on compute-on-aot",
     "--patches=compute-on-aot,compute-on-errors"),
    ("build --output_path=/proc/no/such", "/proc/no", "--output_path"),
    ("apply", "one of --output_path", "apply --base=0.6.0 --output_path=DIR"),
    ("apply --base=all --output_path=x", "several", "--base=0.12.0.1"),
    ("check --write", "goes with --candidate", "check --candidate=..."),
    ("check --no_tests", "goes with --candidate", "check --candidate=..."),
    ("check --candidate=nope", "no version and no folder", "--candidate=DIR"),
    ("test --only a_test", "goes with --upstream", "test --upstream=..."),
    ("test --share=2", "goes with --upstream", "test --upstream=..."),
    ("test --time=1", "goes with --upstream", "test --upstream=..."),
    ("test nope", "no test file and no patch", "ls tests"),
    ("test --each nope", "no patch 'nope'", "choose"),
    ("test --upstream=/nope", "no tests/ folder", "--upstream=DIR"),
    ("reproduce --python=/nope", "can't be run", "--python=PATH"),
    ("export --output_path=x nope", "no patch 'nope'", "choose"),
    ("export --base=0.5.3,0.6.0 --output_path=x", "several", "--base=0.6.0"),
    ("export --candidate=x --base=0.6.0 --output_path=x", "neither",
     "export --candidate=GIT_CHECKOUT"),
    ("export --candidate=/nope --output_path=x", "no jax source tree", "jax/"),
    ("new Bad_Name", "no name for a patch", "another name"),
    ("new name --bases=x", "no version specifier", "--bases="),
    ("retire nope --landed=1", "no patch 'nope'", "choose"),
    ("retire fork-identity --landed=x", "no version", "--landed=0.12.1"),
    ("add_base nope", "no version", "add_base 0.12.1"),
    ("add_base 0.6.0", "a base already", "check --base=0.6.0"),
])
def test_wrong_values(line, wrong, following, capsys):
  assert cli.main(line.split()) == 2
  said = capsys.readouterr().err
  what, next_step = said.split("\nNext: ")
  assert wrong in what and following in next_step
  assert "Traceback" not in said


@pytest.mark.parametrize("line,command", [
    ("", ""), ("frob", ""), ("status --nope", ""), ("docs extra", ""),
    ("export", " export"), ("new", " new"), ("retire fork-identity", " retire"),
    ("test --time=soon", " test"), ("test --share=0", " test"),
    ("bazel", " bazel")])
def test_unknown_or_missing_arguments(line, command, capsys):
  with pytest.raises(SystemExit) as stopped:
    cli.main(line.split())
  assert stopped.value.code == 2
  said = capsys.readouterr().err
  assert said.endswith(f"\nNext: python3 build/build.py{command} --help\n")
  assert said.startswith("usage: python3 build/build.py")


@pytest.mark.parametrize("command", [c[0] for c in cli.COMMANDS])
def test_every_command_has_help(command, capsys):
  with pytest.raises(SystemExit) as stopped:
    cli.main([command, "--help"])
  assert stopped.value.code == 0
  assert "Traceback" not in capsys.readouterr().err


def test_one_base():
  assert bases.one("0.6.0").version == "0.6.0"
  assert bases.one(None) == bases.default_base()
