"""Data sets of the Hugging Face hub, as Parquet files."""

from __future__ import annotations

import re
from pathlib import Path

from blobnet.datasets.containers import Containers
from blobnet.datasets.split_names import split_like
from blobnet.errors import DataError, FileError, OptionError, first_few
from blobnet.files.hub import answering

_NAME = re.compile(r"hf:(?P<repository>[^/@]+/[^/@]+)(?:/(?P<folder>[^@]+?)/?)?(?:@(?P<revision>.+))?")
#: Folders that an error names.
_MAX_NAMED = 9


def is_on_hub(text: str) -> bool:
    """Return True if a text names a data set of the hub."""
    return text.startswith("hf:")


def hub_containers(text: str) -> Containers:
    """The Parquet files of ``hf:OWNER/NAME``, fetched into the cache of the hub's client.

    ``/FOLDER`` behind the name takes those of a folder, ``@REVISION`` at the end those of a branch, tag or commit; the
    name says which commit it is. A file is of the split that its name says, else its folder's.

    Raises:
        OptionError: the name is none, or the package huggingface_hub is missing.
        FileError: the hub has no such data set, or no Parquet files of it, or does not give them.
        DataError: they lie in several folders, as different data sets do.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise OptionError("data set", "it must be hf:OWNER/NAME, perhaps with /FOLDER and @REVISION", received=text)
    repository, inside = match["repository"], match["folder"] or "."
    with answering(text) as hub:
        pattern = "*.parquet" if inside == "." else f"{inside}/*.parquet"
        given = {"repo_type": "dataset", "revision": match["revision"], "allow_patterns": pattern}
        root = Path(hub.snapshot_download(repository, **given))
    folders, files = set[str](), dict[Path, str | None]()
    for path in sorted((root / inside).rglob("*.parquet")):
        folder, own = path.parent, split_like(path.stem)
        if own is None and (own := split_like(folder.name)) is not None:
            folder = folder.parent
        files[path] = own
        folders.add(folder.relative_to(root).as_posix())
    if not files:
        hint = f"hf:{repository}@refs/convert/parquet is what the hub has made of it."
        raise FileError(text, "there must be Parquet files", revision=root.name, hint=hint)
    if len(folders) > 1:
        rule, hint = "a folder must be chosen, where there are several", f"hf:{repository}/{min(folders)}, say."
        raise DataError(text, rule, folders=first_few(sorted(folders), _MAX_NAMED), hint=hint)
    return Containers(text, f"{repository}@{root.name}", files)
