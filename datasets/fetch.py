"""Find the files of a known data set on this machine, or fetch them into the user's cache."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from blobnet.datasets.idx import unpack
from blobnet.datasets.known import DebianPackage, KnownSet, digest, missing_in
from blobnet.errors import FileError
from blobnet.support.user_cache import cache_folder, make_folder

FOLDER_VARIABLE = "BLOBNET_DATA"
CONNECT_SECONDS = 20
TOOL_SECONDS = 600


def locate(known: KnownSet, folder: Path | None, download: bool) -> Path:
    """The folder that holds the four files of ``known``, fetched if they are nowhere.

    Looked at in this order: ``folder`` (or else the environment's BLOBNET_DATA), first its subfolder with the set's
    name; the system's folder; the user's cache. Then the set is fetched into the cache: from its address, or else
    (if Debian has it) from its Debian package.

    Raises:
        FileError: the files are nowhere and cannot be fetched; it lists every place and why it failed.
    """
    tried = []
    for place in _places(known, folder):
        try:
            missing = missing_in(known, place)
        except OSError as error:
            tried.append(f"{place}: {error.strerror}")
            continue
        if not missing:
            return place
        lacks = "lacks " + ", ".join(missing) if len(missing) < len(known.digests) else "has none of the files"
        tried.append(f"{place}: {lacks if place.is_dir() else 'no such folder'}")
    if not download:
        raise _not_found(known, [*tried, "fetching: switched off (download=False)"])
    cache = _cache(known)
    sources = [(known.address, partial(_fetch_from_address, known))]
    if known.debian:
        sources.append((known.debian.name, partial(_fetch_from_debian, known, known.debian)))
    for source, fetch in sources:
        try:
            make_folder(cache)
            fetch(cache)
            return cache
        except (OSError, http.client.HTTPException, subprocess.SubprocessError) as error:
            tried.append(f"{source}: {error}".rstrip("."))
    raise _not_found(known, tried)


def _cache(known: KnownSet) -> Path:
    """Return the folder that keeps the set once it was fetched."""
    folder: Path = cache_folder() / "datasets" / known.name
    return folder


def _places(known: KnownSet, folder: Path | None) -> Iterator[Path]:
    """The folders to look at, in this order."""
    given = folder or os.environ.get(FOLDER_VARIABLE)
    if given:
        # Sets share their file names, so that a folder for several sets needs a subfolder for each.
        yield Path(given).expanduser() / known.name
        yield Path(given).expanduser()
    if known.debian:
        yield known.debian.folder
    yield _cache(known)


def _not_found(known: KnownSet, tried: list[str]) -> FileError:
    """The error that ends the search."""
    install = f"sudo apt-get install {known.debian.name}; or " if known.debian else ""
    return FileError(
        known.name,
        # Not as a value, which stands on one line.
        "its four files must be on this machine, or a source must be reachable; tried were"
        + "".join(f"\n  {attempt}" for attempt in tried),
        hint=f"{install}put {', '.join(known.archives)} into a folder and name it with --data-folder or "
        f"{FOLDER_VARIABLE}",
    )


def _say(known: KnownSet, source: str, cache: Path) -> None:
    """One line for the user, who waits."""
    print(f"{known.name}: fetching {source} into {cache}", file=sys.stderr, flush=True)


@contextmanager
def _arriving(target: Path) -> Iterator[Path]:
    """A temporary file that becomes ``target`` if the block succeeds and vanishes if it fails."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _check_arrival(known: KnownSet, name: str, path: Path, source: str) -> None:
    """Raise DataError unless what was fetched is what was published."""
    found = digest(unpack(path))
    if found != known.digests[name]:
        raise FileError(
            source, f"the checksum (SHA-256) of the decompressed data must be {known.digests[name]}", checksum=found
        )


def _fetch_from_address(known: KnownSet, cache: Path) -> None:
    """Download the files that the cache lacks."""
    _say(known, known.address, cache)
    for name in missing_in(known, cache):
        address = f"{known.address}{name}.gz"
        with _arriving(cache / f"{name}.gz") as temporary:
            with urllib.request.urlopen(address, timeout=CONNECT_SECONDS) as response, temporary.open("wb") as file:
                shutil.copyfileobj(response, file)
            _check_arrival(known, name, temporary, address)


def _fetch_from_debian(known: KnownSet, debian: DebianPackage, cache: Path) -> None:
    """Download the Debian package and copy its files; this needs no root and installs nothing."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise FileError(tool, "the tool must be installed to use a Debian package")
    _say(known, f"the Debian package {debian.name}", cache)
    with tempfile.TemporaryDirectory(prefix="blobnet-") as name:
        work = Path(name)
        # Started by root, apt reads and writes as the user _apt, who must get in.
        work.chmod(0o755)
        package = _download_package(debian.name, work)
        _run(["dpkg-deb", "-x", str(package), "files"], work)
        files = work / "files" / debian.folder.relative_to("/")
        for file_name in missing_in(known, cache):
            source = files / f"{file_name}.gz"
            with _arriving(cache / source.name) as temporary:
                shutil.copyfile(source, temporary)
                _check_arrival(known, file_name, temporary, str(source))


def _download_package(package: str, work: Path) -> Path:
    """Let apt put the package into ``work``, with the system's package lists or, if they do not do, its own."""
    options = ["-o", "Acquire::Retries=0"]
    for scheme in ("http", "https"):
        options += ["-o", f"Acquire::{scheme}::Timeout={CONNECT_SECONDS}"]
    try:
        _run(["apt-get", *options, "download", package], work)
    except FileError:
        # A fresh container has no lists, and only root may fetch them to the usual place.
        lists, apt_cache = work / "lists", work / "cache"
        for folder in (lists / "partial", apt_cache / "archives" / "partial"):
            folder.mkdir(parents=True)
        options += ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={apt_cache}"]
        # An update that reaches no server succeeds: its complaints say why there is no package.
        complaints = _run(["apt-get", *options, "update"], work)
        _run(["apt-get", *options, "download", package], work, complaints)
    found = sorted(work.glob("*.deb"))
    if not found:
        raise FileError("apt-get", f"it must leave the package {package}")
    return found[0]


def _run(command: list[str], folder: Path, earlier: str = "") -> str:
    """Run a tool in ``folder`` and return its complaints; if it fails, they and ``earlier`` ones are the error."""
    result = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
        timeout=TOOL_SECONDS,
        check=False,
    )
    complaints = " ".join(f"{earlier} {result.stderr}".split())
    if result.returncode != 0:
        raise FileError(command[0], "the command must succeed", status=result.returncode, said=complaints)
    return complaints
