"""The wheel and its tests as Bazel rules."""

load("@mend_tool//:data.bzl", "BASES")

def _base_flag_impl(ctx):
    if ctx.build_setting_value not in BASES:
        fail("--//:base=%s is no base: %s" % (ctx.build_setting_value, ", ".join(BASES)))
    return []

base_flag = rule(
    implementation = _base_flag_impl,
    build_setting = config.string(flag = True),
    doc = "The base release: --//:base=0.6.0.",
)

def by_base(template):
    """A select() of labels: {} in `template` is the base, dots as underscores."""
    return select({
        "//:base_" + v: template.format(v.replace(".", "_"))
        for v in BASES
    })

def only_for(versions):
    """A select() for target_compatible_with: the target is for these bases."""
    choices = {"//:base_" + v: [] for v in versions}
    choices["//conditions:default"] = ["//build/bazel:other_base"]
    return select(choices)

def _jax_wheel_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    ctx.actions.run_shell(
        outputs = [out],
        inputs = ctx.files.srcs + ctx.files.sdist,
        tools = [ctx.executable._tool],
        command = """
set -e
MEND_CACHE="$(mktemp -d)"
export MEND_CACHE
trap 'rm -rf "$MEND_CACHE"' EXIT
mkdir "$MEND_CACHE/sdists"
cp -L "$2" "$MEND_CACHE/sdists/jax-$3.tar.gz"
"$1" bazel wheel "--base=$3" "--output_path=$4"
""",
        arguments = [
            ctx.executable._tool.path,
            ctx.file.sdist.path,
            ctx.attr.base,
            out.path,
        ],
        mnemonic = "MendWheel",
        progress_message = "Building the mended jax " + ctx.attr.base,
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))]

jax_wheel = rule(
    implementation = _jax_wheel_impl,
    attrs = {
        "base": attr.string(mandatory = True),
        "sdist": attr.label(allow_single_file = True, mandatory = True),
        "srcs": attr.label_list(allow_files = True),
        "_tool": attr.label(
            default = "@mend_tool//:build_py",
            allow_single_file = True,
            executable = True,
            cfg = "exec",
        ),
    },
    doc = "A folder that holds the mended wheel, under its own name.",
)

_RUN = """#!/bin/bash
set -e
here="$PWD"
python="$here/{python}"
site="$TEST_TMPDIR/site"
mkdir -p "$site" "$TEST_TMPDIR/home"
for wheel in "$here/{wheel}"/*.whl; do
  "$python" -m zipfile -e "$wheel" "$site"
done
cd "$TEST_TMPDIR"
export HOME="$TEST_TMPDIR/home" PYTHONPATH="$site:$here/tests" PYTHONNOUSERSITE=1
export JAX_PLATFORMS=cpu TF_CPP_MIN_LOG_LEVEL=2
export XLA_FLAGS=--xla_force_host_platform_device_count=8
exec "$python" -m pytest -q -p no:cacheprovider -c /dev/null \\
  --rootdir "$TEST_TMPDIR" "$here/{test}"
"""

def _mend_test_impl(ctx):
    script = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(script, _RUN.format(
        python = ctx.file.python.short_path,
        wheel = ctx.files.wheel[0].short_path,
        test = ctx.file.src.short_path,
    ), is_executable = True)
    return [DefaultInfo(
        executable = script,
        runfiles = ctx.runfiles(
            [ctx.file.python, ctx.file.src] + ctx.files.helpers + ctx.files.wheel,
        ),
    )]

mend_test = rule(
    implementation = _mend_test_impl,
    test = True,
    attrs = {
        "helpers": attr.label_list(allow_files = True),
        "python": attr.label(allow_single_file = True, mandatory = True),
        "src": attr.label(allow_single_file = True, mandatory = True),
        "wheel": attr.label(mandatory = True),
    },
    doc = "Runs a test file with pytest on the mended wheel.",
)
