"""Schedules as files describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blobnet.errors import FileError, near_matches
from blobnet.schedules.base import Schedule
from blobnet.schedules.custom import Custom


def from_description(description: Mapping[str, Any], subject: str) -> Schedule:
    """Rebuilds what :meth:`Schedule.description` gave.

    Args:
        description: kind and config.
        subject: the file that it was read from, for errors.

    Raises:
        FileError: it is not the description of a schedule.
        OptionError: a value in it is not allowed.
    """
    try:
        kind = description["kind"]
        if kind not in Schedule.kinds:
            hint = near_matches(kind, list(Schedule.kinds))
            raise FileError(subject, "the learning rate's schedule must be one of blobnet's", kind=kind, hint=hint)
        if kind == Custom.__name__:
            hint = "give fit the optimizer again."
            function = description["config"]["function"]
            raise FileError(subject, "a file cannot hold the function of a schedule", function=function, hint=hint)
        return Schedule.kinds[kind](**description["config"])
    except (KeyError, TypeError, AttributeError) as error:
        raise FileError(subject, "a learning rate's schedule must have a kind and its config") from error
