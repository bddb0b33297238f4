"""The file system a child sees: an allow-list on a `tmpfs`, everything else does not exist there.

Called by the supervisor inside fresh namespaces, with the privileges it needs to mount. Decides what is visible;
`supervisor.py` enters namespaces and gives up privileges.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import site
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradebox.common import layout
from gradebox.sandbox import linux
from gradebox.sandbox.types import Environment

SUBMISSION = "/submission"
PACKAGES = "/packages"
_SYSTEM = (
    "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/include",
    "/usr/share/fonts", "/usr/share/fontconfig", "/usr/share/zoneinfo", "/usr/share/terminfo", "/usr/share/datasets",
    "/usr/local/lib", "/bin", "/sbin", "/lib", "/lib32", "/lib64",
    "/etc/ld.so.cache", "/etc/alternatives", "/etc/fonts", "/etc/localtime", "/etc/timezone", "/etc/ssl/openssl.cnf",
)  # fmt: skip
_CUDA = ("/dev/nvidia*", "/sys", "/usr/local/cuda*", "/usr/local/nvidia", "/etc/nvidia*", "/opt/nvidia")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/full")
_WRITABLE = ("/tmp", "/dev/shm")
_STUBS = {
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_ENGINE = ("gradebox", "gradebook")
_SHOWN = ("__init__.py", "sandbox")
"""What is visible of the engine: the sandbox's child side."""
_NEVER = ("solutions", "labs", "tests", "notebooks", "cluster", "deploy", ".git")
"""Neighbours of our packages in a checkout; hidden should a visible folder hold them."""


@dataclass(frozen=True)
class View:
    """What every child of one server may see."""

    trees: tuple[str, ...]
    """Files and folders, bound under their own paths."""
    hidden: tuple[str, ...]
    """Folders inside `trees` that are covered by an empty one."""
    shown: tuple[str, ...]
    """What is visible of the folders that are hidden: the sandbox's child side."""
    course: str
    """The folder of the course, which is hidden; empty: there is none."""
    probes: tuple[str, ...]
    """What is visible of it: files and folders of probes, with their cases. The packages around them are, too."""
    packages: tuple[str, ...]
    """Folders of the packages that a submission may import."""
    source_roots: tuple[str, ...]
    """Folders our packages were imported from that are not `site-packages`: never on a child's `sys.path`."""
    copy: str = ""
    """A folder with copies of what is visible of the course."""

    @property
    def secret(self) -> tuple[str, ...]:
        """Folders whose files a submission has no business to read: what is hidden, and neighbours in a checkout."""
        neighbours = [os.path.join(parent, name) for parent in self.source_roots for name in _NEVER]
        return tuple(dict.fromkeys([*self.hidden, *neighbours]))

    @property
    def visible(self) -> tuple[str, ...]:
        """What is visible of secret folders."""
        around = {folder for path in self.probes for folder in _around(path, self.course)}
        return (*self.shown, *self.probes, *(os.path.join(folder, "__init__.py") for folder in sorted(around)))


def view(readable: Sequence[str], probe_paths: Sequence[str], course: Environment) -> View:
    """Work out what the running interpreter, our packages and those of the course need."""
    judging = [name for name in (*_ENGINE, course.course) if name]
    folders = {name: _package_folder(name) for name in (*judging, *course.importable)}
    parents = {str(Path(folder).parent) for folder in folders.values() if folder}
    source_roots = {parent for parent in parents if not _is_site(parent)}
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    on_path = {entry for entry in sys.path if os.path.isdir(entry) and entry not in source_roots}
    packages = tuple(folder for name, folder in folders.items() if folder and name not in judging)
    trees = _outermost([*_SYSTEM, *prefixes, *on_path, *packages, *readable, *probe_paths])
    ours = [folder for name in judging if (folder := folders[name])]
    course_folder = folders[course.course] if course.course else None
    probes = layout.beside_submissions(course_folder) if course_folder else ()
    neighbours = [os.path.join(root, name) for root in source_roots for name in _NEVER]
    hidden = [*ours, *(path for path in neighbours if any(_inside(path, tree) for tree in trees))]
    return View(
        trees=tuple(trees),
        hidden=tuple(hidden),
        shown=tuple(os.path.join(os.path.dirname(os.path.dirname(__file__)), name) for name in _SHOWN),
        course=course_folder or "",
        probes=probes,
        packages=packages,
        source_roots=tuple(sorted(source_roots)),
    )


def with_copy(visible: View, folder: str) -> View:
    """Copy what is visible of the course into a new folder.

    A run shows that folder with one mount. To mount each file by itself, as there are three for each criterion, would
    take every run some milliseconds.
    """
    shutil.rmtree(folder, ignore_errors=True)
    packages = {package for path in visible.probes for package in _around(path, visible.course)}
    for path in (*visible.probes, *sorted(os.path.join(package, "__init__.py") for package in packages)):
        target = os.path.join(folder, os.path.relpath(path, visible.course))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(path):
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile)
        elif os.path.exists(path):
            shutil.copyfile(path, target)
    os.makedirs(folder, exist_ok=True)
    for place, _, names in os.walk(folder):  # the user who runs the judge may have a strict umask
        os.chmod(place, 0o755)
        for name in names:
            os.chmod(os.path.join(place, name), 0o644)
    return replace(visible, copy=folder)


def _around(path: str, course: str) -> Iterator[str]:
    """The folders around `path`, up to the course's own."""
    while path != course:
        path = os.path.dirname(path)
        yield path


def _package_folder(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else None


def _is_site(folder: str) -> bool:
    return folder in site.getsitepackages() or Path(folder).name in ("site-packages", "dist-packages")


def _inside(path: str, tree: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(tree).rstrip("/") + "/")


def _outermost(paths: Iterable[str]) -> list[str]:
    """Existing paths without those that lie inside another one; links stay, they are made again."""
    candidates = sorted({os.path.abspath(path) for path in paths if os.path.lexists(path)}, key=len)
    kept: list[str] = []
    for path in candidates:
        if not any(path.startswith(tree.rstrip("/") + "/") for tree in kept):
            kept.append(path)
    return kept


class Builder:
    """Fills one new root. Every path is absolute and means the same inside as outside, unless said otherwise."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._shown: set[str] = set()

    def _at(self, path: str) -> str:
        """Where `path` is under the new root, with links resolved *inside* it: one link must not lead us out."""
        resolved = ""
        for part in path.strip("/").split("/"):
            step = f"{resolved}/{part}"
            if os.path.islink(self._root + step):
                target = os.readlink(self._root + step)
                step = os.path.normpath(os.path.join(resolved or "/", target))
            resolved = step
        return self._root + resolved

    def bind(self, source: str, target: str | None = None) -> None:
        """Show `source` (links along the way become links inside)."""
        real = os.path.realpath(source)
        if target is None:
            if real != source:
                self.link(real, source)
            target = real
            if real in self._shown:
                return
            self._shown.add(real)
        place = self._at(target)
        if os.path.isdir(real):
            os.makedirs(place, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if not os.path.exists(place):
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        linux.mount(real, place, None, linux.MS_BIND | linux.MS_REC)

    def link(self, target: str, path: str) -> None:
        place = self._at(os.path.dirname(path)) + "/" + os.path.basename(path)
        if not os.path.lexists(place):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.symlink(target, place)

    def file(self, path: str, text: str) -> None:
        place = self._at(path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w") as file:
            file.write(text)

    def tmpfs(self, path: str, options: str) -> None:
        place = self._at(path)
        os.makedirs(place, exist_ok=True)
        linux.mount("tmpfs", place, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)


def enter(
    mount_point: str, visible: View, *, submission: str | None, uid: int, cuda: bool, tmp_bytes: int, work: str
) -> None:
    """Build the root on `mount_point` and make it this mount namespace's only content.

    Needs a fresh mount, pid and user or root-owned namespace. Afterwards `/` and everything below is read-only, except
    `/tmp` and `/dev/shm`, and the old root cannot be reached.

    Args:
        mount_point: an existing folder outside.
        visible: what to show.
        submission: the folder that holds the copy's `labs`, shown as `/submission`; None: no submission.
        uid: whom `/etc/passwd` should name.
        cuda: also show NVIDIA's devices and libraries.
        tmp_bytes: size of `/tmp` and of `/dev/shm`.
        work: the folder under `/tmp` that becomes the working directory.

    Raises:
        OSError: a step that this machine does not allow, named.
    """
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", mount_point, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755,size=16m")
    builder = Builder(mount_point)
    for folder in _WRITABLE:  # first, so that an interpreter or a checkout below /tmp can be shown inside
        builder.tmpfs(folder, f"mode=1777,size={tmp_bytes},nr_inodes=65536")
    for tree in visible.trees:
        builder.bind(tree)
    for folder in visible.hidden:
        if folder == visible.course and visible.copy:
            builder.bind(visible.copy, folder)
        else:
            builder.tmpfs(folder, "mode=0755,size=64k")
    for path in visible.shown:
        if os.path.exists(path):
            builder.bind(path)
    for device in _DEVICES:
        builder.bind(device)
    if cuda:
        for path in sorted(path for pattern in _CUDA for path in glob.glob(pattern)):
            builder.bind(path)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        builder.link(f"/proc/self/fd{target}", f"/dev/{name}")
    for path, text in _STUBS.items():
        builder.file(path, text)
    builder.file("/etc/passwd", f"student:x:{uid}:{uid}::/tmp:/bin/sh\n")
    builder.file("/etc/group", f"student:x:{uid}:\n")
    for package in visible.packages:
        builder.link(package, f"{PACKAGES}/{os.path.basename(package)}")
    os.makedirs(mount_point + SUBMISSION)
    if submission is not None:
        builder.bind(submission, SUBMISSION)
    os.makedirs(mount_point + "/proc")
    linux.mount("proc", mount_point + "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    os.chdir(mount_point)
    linux.pivot_root_here()
    linux.make_read_only("/")
    # CUDA names its threads by writing to /proc/self/task/ID/comm, and does not start without.
    for folder in (*_WRITABLE, *(["/proc"] if cuda else [])):
        linux.make_writable(folder)
    os.mkdir(work)
    os.chmod(work, 0o777)  # the ranks have another uid than the supervisor that makes it
