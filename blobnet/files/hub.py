"""The Hugging Face hub, through its own client, and what that says when it fails.

The client fetches and keeps files, so that its cache, $HF_ENDPOINT, $HF_HUB_OFFLINE, tokens and proxies are those of
every program that uses it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from blobnet.errors import BlobnetError, FileError, OptionError, extra

#: The errors of the client, the more special ones first: the rule, and what to do.
_FAILURES = {
    "LocalEntryNotFoundError": (
        "the hub must answer, or the file be in its cache",
        "is there a network, and a proxy ($HTTPS_PROXY), and is $HF_HUB_OFFLINE not set? A path names a file here.",
    ),
    "GatedRepoError": ("the repository must be open to you", "accept its terms on the hub, then set $HF_TOKEN."),
    "RepositoryNotFoundError": (
        "there must be such a repository on the hub, that you may read",
        "hf:OWNER/NAME; for a private one set $HF_TOKEN.",
    ),
    "RevisionNotFoundError": ("the repository must have that revision", "leave out @REVISION for the newest one."),
    "EntryNotFoundError": ("the repository must have that file", None),
    "HFValidationError": ("the name must be one that the hub allows", "hf:OWNER/NAME, hf:timm/resnet50.a1_in1k say."),
}


@contextlib.contextmanager
def answering(text: str, missing: tuple[str, str | None] | None = None) -> Iterator[Any]:
    """The hub's client; what it raises inside becomes a FileError.

    Args:
        text: the name that errors say.
        missing: the rule, and the hint, where the repository has no such file.

    Raises:
        OptionError: the package huggingface_hub is missing.
        FileError: the hub has no such thing, does not give it, or does not answer.
    """
    try:
        hub = importlib.import_module("huggingface_hub")
        failures = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        rule = "names of the hub need the package huggingface_hub"
        raise OptionError(text, rule, cause=error, hint=extra("hub")) from error
    try:
        yield hub
    except BlobnetError:
        raise
    except (OSError, ValueError, RuntimeError, failures.EntryNotFoundError) as error:
        said = _FAILURES | ({"EntryNotFoundError": missing} if missing else {})
        known = (kind for kind in said if isinstance(error, getattr(failures, kind)))
        rule, hint = said.get(next(known, ""), ("the file must be one that the hub gives", None))
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise FileError(text, rule, reason=reason, hint=hint) from error
