"""The bases of callbacks: files that they write, values that they watch."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from blobnet.errors import OptionError, near_matches, nearest, warn
from blobnet.files.atomic import held
from blobnet.metrics.naming import is_error
from blobnet.support.foreign import Explained

if TYPE_CHECKING:
    from blobnet.training.trainer import Progress


class Callback(metaclass=Explained):
    """Base of all callbacks; every method does nothing.

    Attributes:
        only_logs: whether it changes nothing in the training; of several ranks the first alone has such callbacks.
        option: the argument that an option of ``blobnet train`` gives, and the row of that option in the help
            (blobnet/command_line/options.py). A class that has none is for Python alone.
    """

    only_logs: ClassVar[bool] = False
    option: ClassVar[tuple[str, str]]
    #: The classes that have an option of their own.
    with_option: ClassVar[list[type[Callback]]] = []

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "option" in vars(cls):
            Callback.with_option.append(cls)

    def begin(self, progress: Progress) -> None:
        """Before the first epoch."""

    def step_end(self, progress: Progress) -> None:
        """After every step, whose work may still be on its way; the model keeps the weights of the epoch before."""

    def epoch_end(self, progress: Progress) -> None:
        """After every epoch; ``progress.history`` ends with its values."""

    def end(self, progress: Progress) -> None:
        """After the last epoch, unless an error ended the training."""

    def failed(self, error: BaseException) -> None:
        """After an error, or Ctrl-C, that has ended the training since its first step; it is raised after this."""

    def release(self) -> None:
        """After all that, and after an error too, even one before :meth:`begin`: gives back what is held."""


def check_callbacks(callbacks: object) -> tuple[Callback, ...]:
    """The callbacks that ``fit`` was given: a list of them, or a single one.

    Raises:
        OptionError: something else.
    """
    members = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    for member in members:
        if not isinstance(member, Callback):
            received = member if isinstance(member, type) else type(member)
            hint = "a class of yours derives from blobnet.callbacks.Callback; give the callback, not its class."
            raise OptionError("callbacks", "each must be a Callback", type=received.__name__, hint=hint)
        _check_hooks(member)
    return members


def _check_hooks(callback: Callback) -> None:
    """Warns of methods that look like hooks and that nobody calls; OptionError for a hook of other parameters."""
    hooks = {name: hook for name, hook in vars(Callback).items() if inspect.isfunction(hook)}
    kind = type(callback)
    for name in dir(kind):
        if name.startswith("on_") and callable(getattr(kind, name)):
            # Keras and Lightning say batch where this is a step, and call the whole training train or fit.
            meant = re.sub(r"^on_((train|fit)_)?", "", name).replace("batch", "step")
            near = nearest(meant, [meant] if meant in hooks else hooks)
            hint = near or f"the hooks are {', '.join(hooks)}."
            warn(kind.__name__, "no hook of a training has this name, so nobody calls it", method=name, hint=hint)
    for name, hook in hooks.items():
        wanted = list(inspect.signature(hook).parameters)[1:]
        try:
            inspect.signature(getattr(callback, name)).bind(*wanted)
        except TypeError as error:
            rule, hint = f"{name} must take what it is given", f"def {name}({', '.join(['self', *wanted])})."
            raise OptionError(kind.__name__, rule, cause=error, hint=hint) from error


class _FileCallback(Callback):
    """A callback that writes a file, which nobody else may write from :meth:`hold` to :meth:`release`.

    Args:
        path: the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._held: contextlib.ExitStack | None = None

    def hold(self) -> None:
        """Keeps other trainings, and other callbacks, from writing the file, if that is not done yet.

        Raises:
            FileError: one of them writes it.
        """
        if self._held is None:
            stack = contextlib.ExitStack()
            stack.enter_context(held(self.path))
            self._held = stack

    def begin(self, progress: Progress) -> None:
        if progress.writes:
            self.hold()

    def release(self) -> None:
        stack, self._held = self._held, None
        if stack is not None:
            stack.close()


class _Monitor(Callback):
    """The base of callbacks that look for the best value of the history.

    Attributes:
        waited: epochs since the best one; 0 right after it.
    """

    def __init__(self, monitor: str, minimum_change: float, falls: bool | None) -> None:
        if not isinstance(monitor, str):
            hint = "give numbers by name, patience=3 say."
            raise OptionError(type(self).__name__, "monitor must be the name of a value", monitor=monitor, hint=hint)
        self.monitor = monitor
        self.minimum_change = minimum_change
        self.falls = is_error(monitor) if falls is None else falls
        self.waited = 0
        self._best: float | None = None

    def begin(self, progress: Progress) -> None:
        if self.monitor not in progress.metrics:
            rule = "monitor must be one of the values that this training measures"
            hint = near_matches(self.monitor, progress.metrics)
            if self.monitor.startswith("validation_"):
                hint = "train with validation data, or monitor another value."
                if any(name.startswith("validation_") for name in progress.metrics):
                    hint = "fit(metrics=...) measures more of the validation data."
            raise OptionError(type(self).__name__, rule, monitor=self.monitor, hint=hint)
        self._best, self.waited = None, 0
        # A resumed training goes on waiting.
        for value in progress.history.get(self.monitor, []):
            self._judge(value)

    def epoch_end(self, progress: Progress) -> None:
        self._judge(progress.history[self.monitor][-1])

    def _judge(self, value: float) -> None:
        gain = 0.0 if self._best is None else self._best - value if self.falls else value - self._best
        if not math.isnan(value) and (self._best is None or gain > self.minimum_change):
            self._best, self.waited = value, 0
        else:
            self.waited += 1
