# SPDX-License-Identifier: Apache-2.0
"""git in a folder of its own, deaf to the settings of the user and the machine.

So that what is written depends on the trees and the patches alone. Who writes a
commit is asked of the caller's git where it matters, in a pull request.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import subprocess

from mend.ground.errors import MendError


_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[a-zA-Z-]+")
# What no mail can reach (RFC 2606).
_RESERVED = re.compile(
    r"[@.](example\.(com|org|net)|invalid|example|test|localhost)$")


@dataclasses.dataclass(frozen=True)
class Author:
  """The author of a commit, and its time as git writes it."""
  name: str = "The Mend Authors"
  mail: str = "mend@example.invalid"
  when: str = "315532800 +0000"  # 1980-01-01, as in the wheels


def caller(folder: pathlib.Path) -> Author:
  """The author by the caller's git configuration, now.

  Args:
    folder: one whose repository may have settings of its own.

  Raises:
    MendError: there is no git, or it knows no name.
  """
  try:
    done = subprocess.run(
        ["git", "-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT"],
        cwd=folder, capture_output=True, encoding="utf-8", check=False)
  except FileNotFoundError as e:
    raise MendError("There is no git on PATH.", "install git") from e
  found = re.fullmatch(r"(.*) <(.*)> (\d+ [+-]\d+)", done.stdout.strip())
  if done.returncode or not found:
    raise MendError(
        "git knows no author: a pull request has the name of a person, who "
        "vouches for it.", "git config --global user.name NAME, and "
        "user.email MAIL")
  author = Author(*found.groups())
  if not _ADDRESS.fullmatch(author.mail) or _RESERVED.search(author.mail):
    raise MendError(
        f"The author's address is {author.mail!r}, which the CLA's check "
        "refuses.", "git config --global user.email MAIL")
  return author


class Git:
  """git in one folder, deaf to the user's and the machine's settings."""

  def __init__(self, folder: pathlib.Path, author: Author = Author()):
    self.folder = folder
    self.env = {k: v for k, v in os.environ.items()
                if not k.startswith("GIT_")}
    self.env.update(
        GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_SYSTEM=os.devnull,
        GIT_CONFIG_NOSYSTEM="1", GIT_ATTR_NOSYSTEM="1", LC_ALL="C", TZ="UTC",
        HOME=str(folder), XDG_CONFIG_HOME=str(folder),
        GIT_TERMINAL_PROMPT="0",
        **{f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER")
           for key, value in (("NAME", author.name), ("EMAIL", author.mail),
                              ("DATE", author.when))})

  def run(self, *arguments: str, text: str | None = None) -> str:
    """Raises MendError with git's words if it fails, or is not there."""
    try:
      done = subprocess.run(
          ["git", "-c", "core.autocrlf=false", "-c", "gc.auto=0",
           "-c", "core.hooksPath=" + os.devnull, *arguments],
          cwd=self.folder, env=self.env, input=text, capture_output=True,
          encoding="utf-8", check=False)
    except FileNotFoundError as e:
      raise MendError("There is no git on PATH.", "install git") from e
    if done.returncode:
      raise MendError(f"git {arguments[0]} failed: {done.stderr.strip()}",
                      "report it with this output")
    return done.stdout

  def format(self, target: pathlib.Path, commits: str, first: int = 1) -> None:
    """Writes each of the commits to a file of the folder `target`."""
    target.mkdir(parents=True, exist_ok=True)
    self.run(
        "-c", "diff.algorithm=myers", "format-patch", "--quiet", "--no-stat",
        "--no-signature", "--zero-commit", "--no-renames", "--full-index",
        "--no-color", "--unified=3", "--src-prefix=a/", "--dst-prefix=b/",
        f"--start-number={first}", f"--output-directory={target}", commits)


def commit_of(folder: pathlib.Path, at: str = "HEAD") -> tuple[str, str]:
  """A commit of a checkout, and its date; "" where `folder` is no checkout."""
  if not (folder / ".git").exists():
    return "", ""
  said = Git(folder).run("-c", f"safe.directory={folder}", "log", "-1",
                         "--format=%H %cd", "--date=short", at)
  commit, _, date = said.strip().partition(" ")
  return commit, date


def require_checkout(folder: pathlib.Path) -> None:
  """Refuses what is no clean git checkout of jax.

  Raises:
    MendError: no git checkout, or files of it are changed.
  """
  if not (folder / "jax" / "version.py").is_file():
    raise MendError(f"{folder} is no jax source tree: it has no "
                    "jax/version.py.", "name the folder that holds jax/")
  if not (folder / ".git").exists():
    raise MendError(f"{folder} is no git checkout.",
                    "leave --tree away, or name a checkout of jax")
  changed = Git(folder).run("-c", f"safe.directory={folder}", "status",
                            "--porcelain", "--untracked-files=no")
  if changed.strip():
    files = re.sub(r"\s+", " ", changed.strip())
    raise MendError(f"{folder} has changed files: {files}.",
                    f"git -C {folder} stash, then run the command again")
