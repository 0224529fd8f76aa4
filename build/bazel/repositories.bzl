"""What Bazel needs from outside, all of it through the tool and pip.

Rules that can reach the network run here, in the loading phase; the actions
that build and test need none.
"""

# Bazel 4's own test rules name these; nothing of theirs is used. Later Bazels
# load from theirs while they start, so these would break them.
_STUBS = ["remote_coverage_tools", "rules_cc", "rules_java"]

def stub_repositories():
    # Debian's 4.2.3 says no version of itself.
    if int((native.bazel_version or "4").split(".")[0]) > 4:
        return
    for name in _STUBS:
        if not native.existing_rule(name):
            native.local_repository(
                name = name,
                path = "build/bazel/stubs/" + name,
            )

def _run(ctx, command, env = {}):
    done = ctx.execute(command, timeout = 1800, environment = env)
    if done.return_code:
        fail("%s\n%s%s" % (command, done.stdout, done.stderr))
    return done.stdout.strip()

def _wrapper(ctx, command):
    # A link to a virtual environment's Python would not find its packages.
    ctx.file("python", "#!/bin/sh\nexec %s \"$@\"\n" % command, executable = True)

def _mend_tool_impl(ctx):
    ctx.path(Label("//patches:families.toml"))
    series = ctx.path(Label("//patches:series"))
    names = [
        line.split("#")[0].strip()
        for line in ctx.read(series).split("\n")
    ]
    for name in names:
        if name:
            ctx.path(Label("//patches:%s.toml" % name))  # fetched again with it
    ctx.path(Label("//build:bases.toml"))
    script = ctx.path(Label("//build:build.py"))
    env = {"MEND_CACHE": str(ctx.path("cache"))}
    python = ctx.which("python3")
    if not python:
        fail("There is no python3 on PATH.")
    ctx.report_progress("preparing the tool's environment")
    ctx.file("data.bzl", _run(ctx, [python, script, "bazel", "data"], env) + "\n")
    tool = [p for p in ctx.path("cache").readdir() if p.basename.startswith("tool-") and not p.basename.endswith(".lock")][0]
    ctx.file("run.py", "import sys\nsys.dont_write_bytecode = True\n" +
                       "sys.path.insert(0, '%s')\n" % script.dirname +
                       "from mend import cli\nsys.exit(cli.main(sys.argv[1:]))\n")
    _wrapper(ctx, "%s/bin/python -B" % tool)
    ctx.file("build_py", "#!/bin/sh\nexec %s/bin/python -B %s \"$@\"\n" % (
        tool,
        ctx.path("run.py"),
    ), executable = True)
    ctx.file("BUILD.bazel", _EXPORT % "\"python\", \"build_py\"")

_EXPORT = "exports_files([%s], visibility = [\"//visibility:public\"])\n"

mend_tool = repository_rule(
    implementation = _mend_tool_impl,
    environ = ["PATH", "MEND_PYTHONS", "PIP_INDEX_URL", "PIP_CONFIG_FILE"],
    doc = "The tool's private environment, and what it knows as data.bzl.",
)

def _ask(ctx, what):
    ctx.report_progress("%s of jax %s" % (what, ctx.attr.version))
    ctx.path(Label("//build:bases.toml"))
    env = {"MEND_CACHE": str(ctx.path("cache"))}
    tool = ctx.path(Label("@mend_tool//:build_py"))
    return _run(ctx, [tool, "bazel", what, "--base=" + ctx.attr.version], env)

def _sdist_impl(ctx):
    ctx.symlink(_ask(ctx, "sdist"), "sdist.tar.gz")
    ctx.file("BUILD.bazel", _EXPORT % "\"sdist.tar.gz\"")

def _environment_impl(ctx):
    _wrapper(ctx, _ask(ctx, "environment").split("\n")[-1] + " -B")
    ctx.file("BUILD.bazel", _EXPORT % "\"python\"")

_ATTRS = {"version": attr.string(mandatory = True)}
_ENVIRON = ["PATH", "MEND_PYTHONS", "PIP_INDEX_URL", "PIP_CONFIG_FILE"]

mend_sdist = repository_rule(
    implementation = _sdist_impl,
    attrs = _ATTRS,
    environ = _ENVIRON,
    doc = "The pinned source distribution of a base, checked by its hash.",
)

mend_environment = repository_rule(
    implementation = _environment_impl,
    attrs = _ATTRS,
    environ = _ENVIRON,
    doc = "A Python with the stock jaxlib of a base and what tests need.",
)

def base_repositories(versions):
    for version in versions:
        name = version.replace(".", "_")
        mend_sdist(name = "jax_" + name, version = version)
        mend_environment(name = "jax_env_" + name, version = version)
