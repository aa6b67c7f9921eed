"""An OpenCL device: what is known of it, and its queue, memory and programs."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

from blobnet.device.discovery import DeviceInfo, check_precision, choose, tuning_of
from blobnet.device.memory import Memory
from blobnet.device.opencl import cl
from blobnet.device.programs import Programs
from blobnet.device.queue import Queue
from blobnet.device.tuning import Tunings
from blobnet.errors import DeviceError
from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import Tuning, settle
from blobnet.memory.blob import FLOAT32, Padding
from blobnet.support.old_names import names_of_parts

#: Methods that a device had itself, by what they are called in the part that has them now, where that is another name.
_RENAMED = {
    "take": "import_memory",
    "fetch": "write_async",
    "read_later": "read_async",
    "mark": "record_event",
    "hold": "wait_event",
    "wait": "synchronize",
    "entry": "cache_file",
    "preload_programs": "preload",
}


class Device:
    """One OpenCL device with its context and in-order queue; the precision that it computes in, and how blobs lie.

    Args:
        info: the device, or its name as :func:`choose` takes it.

    Attributes:
        info: what its driver says of it.
        queue: launches, events.
        memory: buffers, and copies to and from them.
        programs: what builds and keeps programs.
        precision: one of PRECISIONS.
        padding: how blobs lie, beside what kernels need.
        storage: what is kept between layers.

    Raises:
        DeviceError: there is no such device, or it gives no context or queue.
    """

    precision = "fp32"
    padding = Padding()
    storage = FLOAT32

    def __init__(self, info: DeviceInfo | str | None = None) -> None:
        self.info = info if isinstance(info, DeviceInfo) else choose(info)
        try:
            context = cl.Context([self.info.handle])
            self.queue = Queue(context, self.info)
        except cl.Error as error:
            raise DeviceError(str(self.info), "the device must give a context and a queue", cause=error) from error
        self.memory, self.programs = Memory(self.queue), Programs(context, self.info)

    @property
    def is_host(self) -> bool:
        """True if it is the host's own processor, with its memory."""
        return self.info.is_host

    @cached_property
    def tunings(self) -> Tunings:
        """The measurements of this device."""
        return Tunings(self.info.identity, self.info.model.relatives)

    @property
    def model(self) -> DeviceModel:
        """The known facts of the device, with those that were measured."""
        return self.info.model.measured(**self.tunings.speeds)

    @property
    def largest_group(self) -> int:
        """The most work-items of a work-group."""
        return self.info.model.group_size

    @property
    def tuning(self) -> Tuning:
        """Values for tunables on this device, and the candidates that were measured as the fastest."""
        return tuning_of(self.model, self.precision, self.storage, self.padding, self.tunings.choices)

    def at(self, precision: str, storage: str = FLOAT32.name) -> Device:
        """Return the same device, with the same queue, memory and programs, for one of PRECISIONS.

        ``storage`` is what is kept between layers, where the precision does not say it: see :func:`settle`.

        Raises:
            OptionError: there is no such precision, or storage, or the two say different things.
            DeviceError: the device has no tensor cores.
        """
        check_precision(self.info, precision)
        precision, kept = settle(precision, storage)
        return self._with(precision=precision, storage=kept)

    def guarding(self) -> Device:
        """Return the same device, with the same queue and programs, whose buffers lie between canaries.

        Its ``memory.guarded`` has these buffers.
        """
        return self._with(memory=self.memory.guarding())

    def _with(self, **changes: Any) -> Device:
        _ = self.tunings  # which both then share
        other = copy.copy(self)
        vars(other).update(changes)
        return other

    if not TYPE_CHECKING:  # Checkers should say that there is no such attribute.
        __getattr__ = names_of_parts(("queue", "memory", "programs"), _RENAMED)
