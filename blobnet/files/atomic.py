"""Files that are written all or nothing, and looked at before they are read (docs/file_format.md)."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from blobnet.errors import FileError, OptionError, first_few
from blobnet.support import system
from blobnet.support.formatting import format_bytes
from blobnet.support.regular_file import check_regular

#: The first bytes of HDF5 files.
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
HDF5, ONNX, SAFETENSORS = "an HDF5 file", "an ONNX file, by its name", "a safetensors file"
UNKNOWN = "no format that blobnet knows"
#: The first bytes of files of other formats.
_KINDS = {
    HDF5_SIGNATURE: HDF5,
    b"PK\x03\x04": "a zip archive (.npz, .keras or PyTorch)",
    b"\x80": "a Python pickle (an old PyTorch file?)",
    b"\x93NUMPY": "a .npy array",
    b"\x1f\x8b": "a gzip file",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"version https://git-lfs": "a Git LFS pointer (run: git lfs pull)",
    b"<": "a web page or XML",
}

#: Hints at what reads files of networks or weights, where something else is expected.
_READERS = {
    HDF5: "blobnet.load reads a model that blobnet wrote.",
    ONNX: "blobnet.onnx.load reads it, and so do blobnet plan and blobnet predict.",
    SAFETENSORS: "model.load_safetensors reads its weights, of a network with the same layers.",
}

#: The ends of the names of files that PyTorch writes as pickles.
PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin")

#: The functions that write files whose names end so; longer ends first.
WRITERS = {
    ".weights.h5": "model.save_keras_weights",
    ".safetensors": "model.save_safetensors",
    ".onnx": "blobnet.onnx.save",
    ".h5": "model.save",
    ".hdf5": "model.save",
}

#: The ends of the names of files that nothing here writes.
_OTHERS = (*PICKLES, ".keras", ".npz", ".npy", ".pb", ".tflite")

#: Names of the files that this process is writing.
_UNDER_WAY: set[str] = set()
#: The files that this process holds.
_HELD: set[Path] = set()
_HOLDING = threading.Lock()


# -- writing -----------------------------------------------------------------------------------------------------------


def check_name(path: str | os.PathLike[str], writer: str) -> None:
    """Raises FileError for a name by which what ``writer``, one of WRITERS, writes were taken for another format."""
    name = subject_of(path)
    ending = next((ending for ending in (*WRITERS, *_OTHERS) if name.lower().endswith(ending)), None)
    if ending in _OTHERS:
        own = next(ending for ending, function in WRITERS.items() if function == writer)
        rest = ", ".join(f"{function} {ending}" for ending, function in WRITERS.items() if function != writer)
        hint = f"{Path(name).stem}{own}; {rest}."
        raise FileError(name, f"{writer} writes another format, and nothing here writes this one", hint=hint)
    if ending is not None and WRITERS[ending] != writer:
        rule, hint = f"{writer} writes another format", f"{WRITERS[ending]} writes such files, as blobnet convert does."
        raise FileError(name, rule, ending=ending, hint=hint)


def write(path: str | os.PathLike[str], image: bytes) -> None:
    """Write a file, all or nothing: whatever happens, the old file or the new one is there, whole.

    Raises:
        FileError: the file cannot be written there, or the disk is full.
    """
    subject, target = subject_of(path), _real(path)
    temporary = _temporary(target)
    with _writing(subject, target, len(image)):
        _check_target(subject, target)
        _UNDER_WAY.add(temporary.name)
        try:
            with temporary.open("xb") as file:
                file.write(image)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            _UNDER_WAY.discard(temporary.name)
    _flush_folder(subject, target.parent)
    _remove_stale(target)


@contextlib.contextmanager
def held(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keeps others that ask for the same from writing a file, for as long as it takes; before it is there too.

    Where a disk has no locks (some network disks), no other process is kept out.

    Raises:
        FileError: another process holds it, or somebody else in this one.
    """
    target = _real(path)
    lock = _lock_of(target)
    with contextlib.ExitStack() as stack:
        # NOTE: a process is never kept out by a lock of its own.
        with _HOLDING:
            if target in _HELD:
                rule, hint = "another training, or callback, of this process writes this file", "write another file."
                raise FileError(subject_of(path), rule, hint=hint)
            _HELD.add(target)
        stack.callback(_HELD.discard, target)
        try:
            _take(lock, stack)
        except BlockingIOError as error:
            rule, hint = "another training is writing this file", "wait for its end, or write another file."
            with contextlib.suppress(OSError, ValueError):
                check_regular(lock)
                hint = f"wait for the end of process {int(lock.read_text())}, or write another file."
            raise FileError(subject_of(path), rule, hint=hint) from error
        except OSError:
            pass
        yield


def _real(path: str | os.PathLike[str]) -> Path:
    """A path without links, from the root on."""
    try:
        return Path(os.path.realpath(path))
    except OSError as error:
        check_working_folder()
        raise FileError(subject_of(path), "the path must be one that there can be", cause=error) from error


def check_working_folder() -> None:
    """Raises FileError where the working folder, that paths begin at, is gone, or may not be entered."""
    try:
        Path.cwd()
    except OSError as error:
        rule = "the working folder must be there, and one that may be entered"
        raise FileError(".", rule, cause=error.strerror, hint="change to another folder: cd ~, say.") from error


def _lock_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


def _take(lock: Path, stack: contextlib.ExitStack) -> None:
    """Locks a file, which is gone when the stack unwinds; BlockingIOError if another process has locked it."""
    while True:
        file = stack.enter_context(system.open_lock(lock))
        system.lock(file, waits=False)
        with contextlib.suppress(FileNotFoundError):
            # Whoever held it may have removed it meanwhile.
            if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                break
    stack.callback(_remove_lock, lock)
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()


def _remove_lock(lock: Path) -> None:
    with contextlib.suppress(OSError):  # On Windows it stays: it is open.
        lock.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str], bytes_needed: int) -> None:
    """Find out before any work is done whether :func:`save` will be able to write ``bytes_needed`` to ``path``.

    Raises:
        FileError: no such folder, one that cannot be written to, a path that is no regular file, too little free space.
    """
    subject, target = subject_of(path), _real(path)
    temporary = _temporary(target)
    with _writing(subject, target, bytes_needed):
        _check_target(subject, target)
        temporary.open("xb").close()
        temporary.unlink()
        free = shutil.disk_usage(target.parent).free
    if free < bytes_needed:
        raise FileError(
            subject,
            "the disk must have room for the file",
            folder=target.parent,
            needed=format_bytes(bytes_needed),
            free=format_bytes(free),
            hint="free some space or choose another folder. A file is only replaced once the new one is complete.",
        )


def _check_target(subject: str, target: Path) -> None:
    """Raise FileError unless ``target`` is a place for a file, as far as one can tell without writing."""
    folder = target.parent
    if target.is_dir():
        raise FileError(subject, "the path must name a file, but it is a folder", hint=f"{subject}/model.h5, perhaps?")
    if not folder.is_dir():
        if folder.exists():
            raise FileError(subject, "the folder of the file must be a folder, but it is a file", folder=folder)
        raise FileError(subject, "the folder of the file must exist", folder=folder, hint=f"mkdir -p {folder}")
    if target.exists() and not target.is_file():
        raise FileError(subject, "the path must name a regular file, but it is a device, a pipe or a socket")
    if target.exists() and not os.access(target, os.W_OK):
        raise FileError(subject, "the file that is there is write-protected", hint="choose another name.")


@contextlib.contextmanager
def _writing(subject: str, target: Path, needed: int) -> Iterator[None]:
    """Turn what the system says into a FileError."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        free = "unknown"
        with contextlib.suppress(OSError):
            free = format_bytes(shutil.disk_usage(target.parent).free)
        rule = f"the file cannot be written: {error.strerror or error}"
        hint = "what was there before is unchanged."
        raise FileError(
            subject, rule, folder=target.parent, needed=format_bytes(needed), free=free, hint=hint
        ) from error


def _temporary(target: Path) -> Path:
    """A name for a file that is being written; it says whose it is, for :func:`_remove_stale`."""
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _remove_stale(target: Path) -> None:
    """Remove what killed processes left behind when they wrote ``target``, or held it."""
    if _lock_of(target).exists():
        with contextlib.suppress(FileError), held(target):
            pass  # Who holds it last removes it.
    pattern = re.compile(re.escape(f".{target.name}.") + r"([0-9]{1,9})-[0-9a-f]{8}\.tmp")
    with contextlib.suppress(OSError):
        for entry in target.parent.iterdir():
            match = pattern.fullmatch(entry.name)
            # NOTE: the first process of every container has the same number, also that of the one that was killed.
            is_ours = match and int(match[1]) == os.getpid()
            if match and (entry.name not in _UNDER_WAY if is_ours else not _is_alive(int(match[1]))):
                entry.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # NOTE: on Windows os.kill(process, 0) ends the process.
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def _flush_folder(subject: str, folder: Path) -> None:
    """Make a rename in ``folder`` last, where the system can."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EINVAL, errno.ENOTSUP):
            rule = f"the file is written, but its folder cannot be flushed: {error.strerror}"
            raise FileError(subject, rule, folder=folder, hint="the disk may be failing.") from error


# -- reading -----------------------------------------------------------------------------------------------------------


def subject_of(path: object) -> str:
    """Return the name of a file in errors.

    Raises:
        OptionError: it is no path, or an empty one.
    """
    if not isinstance(path, str | os.PathLike):
        raise OptionError("file", "it must be a path: a text, or a pathlib.Path", received=repr(path))
    if not os.fspath(path):
        raise OptionError("file", "it must be a path, but it is an empty text")
    return str(path)


def opening(path: str | os.PathLike[str]) -> tuple[bytes, int]:
    """The first 64 bytes of a file that is to be read, and its size.

    Raises:
        FileError: there is no such file, it is no regular one, or it cannot be read.
    """
    subject, file = subject_of(path), Path(path)
    try:
        check_regular(file)
        with file.open("rb") as stream:
            return stream.read(64), file.stat().st_size
    except FileNotFoundError as error:
        raise FileError(subject, "there must be such a file", hint=_similar(file)) from error
    except OSError as error:
        raise FileError(subject, f"the file cannot be read: {error.strerror or error}") from error


def kind_of(path: str | os.PathLike[str], start: bytes) -> tuple[str, str | None]:
    """Return what a file that begins so seems to be, and a hint at what reads it."""
    kind = next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), UNKNOWN)
    if start[4:10] == b'\0\0\0\0{"':  # Behind the length of a header, in 8 bytes.
        kind = SAFETENSORS
    elif kind == UNKNOWN and Path(path).suffix == ".onnx":  # Which begins with nothing of its own.
        kind = ONNX
    return kind, pickle_hint(path) if Path(path).suffix in PICKLES else _READERS.get(kind)


def pickle_hint(path: str | os.PathLike[str]) -> str:
    """The lines that make a file of weights of a pickle of PyTorch's, which is never read."""
    new = Path(path).with_suffix(".safetensors").name
    hint = "where you trust it, these two lines convert it:\n"
    hint += "    from safetensors.torch import save_file\n"
    return hint + f"    save_file(torch.load({Path(path).name!r}, weights_only=True), {new!r})"


def _similar(path: Path) -> str | None:
    """Return a hint at files of similar names."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        found = sorted(item.name for item in itertools.islice(path.parent.glob(f"*{path.suffix}"), 100))
    return f"in that folder are {listed(found)}." if found else None


def plain_text(text: object) -> str:
    """Text that no terminal takes for a command."""
    return str(text).encode("unicode_escape").decode("ascii")


def listed(names: Iterable[object]) -> str:
    """The first few names."""
    return first_few(map(plain_text, names), 12) or "none"
