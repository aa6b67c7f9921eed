"""Feeds changed files to the readers of files: `python -m tests.interop.fuzz onnx --minutes 20`.

A loop guided by coverage: files that reach a line of blobnet's, or an error, that none before reached are kept and
changed further. Changes are of bytes and numbers, and know a format's structure where bytes alone would not get far:
fields of ONNX's messages, the JSON header of safetensors. Readers run in a process of their own with a bound of memory.
Findings are what a reader must not do with any file: raise an error that is not blobnet's, end the process, take more
than ``SECONDS``, or ``MEMORY``. They are written to ``--output``, each under the name of what happened; small ones
belong into tests/interop/corpus, which test_corpus.py reads again.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import os
import pickle
import re
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import h5py
import numpy as np

import blobnet as bn
from blobnet import layers
from blobnet.contraction import function, schedule_cache
from blobnet.contraction.layout import Layout
from blobnet.contraction.lowering import Buffers, scheduled
from blobnet.contraction.schedule import Schedule
from blobnet.contraction.source import generate
from blobnet.contraction.table import Table, flatten
from blobnet.datasets.class_names import CLASS_FILE, CLASS_INDEX, listed_classes
from blobnet.datasets.image_folder import Reading, read_picture_table
from blobnet.datasets.user_data import read_samples
from blobnet.device.device import Device
from blobnet.device.tuning import Tunings, Winner
from blobnet.errors import BlobnetError
from blobnet.hardware.device_model import HOST
from blobnet.launch.task import BrokenVariant, Task, Variant
from blobnet.support.user_cache import cache_folder, make_folder, read_entry, write_entry
from tests.interop.networks import keras_2

#: Where the lines are that guide the changes.
ROOTS = tuple(str(Path(str(module.__file__)).parent) for module in (bn, bn.datasets))
#: Files of this folder are read again by a test.
CORPUS = Path(__file__).parent / "corpus"
#: What reading one file may take: seconds of a processor, whoever else has it meanwhile, and bytes; and seconds of a
#: clock, with texts of variable length in HDF5, which have 20 on a processor that is free.
SECONDS, MEMORY, PATIENCE = 40.0, 3 << 30, 400.0
#: Files after which the reading process is made anew.
ROUND = 500
#: Numbers at which sizes and offsets go wrong.
NUMBERS = (0, 1, 2, 7, 8, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -1, -2)
#: No file grows beyond this.
LONGEST = 1 << 16

Random = np.random.Generator
Change = Callable[[bytes, list[bytes], Random], bytes]


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        suffix: of its files.
        seeds: whole files.
        load: reads one.
        change: one that knows the format's structure.
    """

    suffix: str
    seeds: Callable[[], Iterable[bytes]]
    load: Callable[[Path], object]
    change: Change | None = None


# -- changes ---------------------------------------------------------------------------------------------------------


def pick(random: Random, items: Any) -> Any:
    return items[int(random.integers(len(items)))]


def of_bytes(data: bytes, others: list[bytes], random: Random) -> bytes:
    """A few bytes other, a number of some width written over, or a part lost, doubled or of another file."""
    found = bytearray(data)
    start = int(random.integers(len(found) + 1))
    size = int(min(2 ** random.uniform(0, 9), len(found) - start))
    kind = int(random.integers(7))
    if kind == 0:
        for place in random.integers(0, max(1, len(found)), random.integers(1, 6)):
            found[place : place + 1] = bytes([int(random.integers(256))])
    elif kind == 1:
        found[start : start + 1] = (
            bytes([(found[start] ^ (1 << int(random.integers(8))))]) if start < len(found) else b""
        )
    elif kind == 2:
        width = pick(random, (1, 2, 4, 8))
        number = pick(random, (*NUMBERS, len(found), len(found) - start)) % 2 ** (8 * width)
        found[start : start + width] = number.to_bytes(width, pick(random, ("little", "big")))
    elif kind == 3:
        del found[start : start + size]
    elif kind == 4:
        found[start:start] = found[start : start + size] * int(random.integers(1, 4))
    elif kind == 5:
        other = pick(random, others)
        place = int(random.integers(len(other) + 1))
        found[start : start + size] = other[place : place + size]
    else:
        del found[start:]
    return bytes(found)


def of_safetensors(data: bytes, others: list[bytes], random: Random) -> bytes:
    """Another value, key or nesting somewhere in the header."""
    try:
        (length,) = struct.unpack("<Q", data[:8])
        header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    except (struct.error, ValueError, RecursionError):
        return of_bytes(data, others, random)
    if not change_json(header, random, ("F32", "F16", "F64", "BF16", "I8", len(rest))):
        return of_bytes(data, others, random)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + rest


def of_json(data: bytes, others: list[bytes], random: Random) -> bytes:
    """Another value, key or nesting somewhere in a file of JSON."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return of_bytes(data, others, random)
    words = re.findall(r'"([^"]*)"', pick(random, others).decode(errors="replace"))
    known = change_json(content, random, words or [""])
    return json.dumps(content).encode() if known else of_bytes(data, others, random)


def of_npy(data: bytes, others: list[bytes], random: Random) -> bytes:
    """Another type, shape or order in the header."""
    try:
        (length,) = struct.unpack("<H", data[8:10])
        header = ast.literal_eval(data[10 : 10 + length].decode("latin-1"))
        header = {**header, "shape": list(header["shape"])}
    except (struct.error, SyntaxError, ValueError, TypeError, LookupError, MemoryError, RecursionError):
        return of_bytes(data, others, random)
    change_json(header, random, ("<f8", "|S3", ">U2", "|b1", "?", "<M8[7Y/0]", "(2,)f4", "|,1", "|O", "<V4"))
    shape = header.get("shape")
    text = repr({**header, "shape": tuple(shape) if isinstance(shape, list) else shape}).encode("latin-1", "replace")
    return data[:8] + struct.pack("<H", len(text) % 2**16) + text + data[10 + length :]


def change_json(content: Any, random: Random, words: Sequence[Any]) -> bool:
    """Changes one item of nested lists and dicts, to one of ``words`` maybe; whether there is any."""
    spots: list[tuple[Any, Any]] = []
    stack = [content]
    while stack:
        item = stack.pop()
        if isinstance(item, dict | list):
            keys = list(item) if isinstance(item, dict) else range(len(item))
            spots += [(item, key) for key in keys]
            stack += [item[key] for key in keys]
    if not spots:
        return False
    owner, key = pick(random, spots)
    kind = int(random.integers(4))
    if kind == 0:
        del owner[key]
    elif kind == 1 and isinstance(owner, dict):
        owner[pick(random, (*owner, "", "x" * 300, "\0", "__metadata__"))] = owner[key]
    elif kind == 2:
        owner[key] = copy.deepcopy(pick(random, spots)[0])
    else:
        texts = ("", "[1, 2]", "[NaN]", "[1e999]", "\ud800")
        owner[key] = pick(random, (*NUMBERS, *texts, *words, None, True, 1.5, [], {}, [0, 8]))
    return True


def _messages(message: Any) -> list[Any]:
    """A message and all within it."""
    found, stack = [], [message]
    while stack:
        item = stack.pop()
        found.append(item)
        for field, value in item.ListFields():
            if field.type == field.TYPE_MESSAGE:
                stack += [value] if hasattr(value, "ListFields") else list(value)
    return found


def of_onnx(data: bytes, others: list[bytes], random: Random) -> bytes:
    """Another value in some field of some message, or one that stands elsewhere or in another file."""
    import onnx
    from google.protobuf.message import DecodeError

    from blobnet.onnx.operators import OPERATORS

    model, other = onnx.ModelProto(), onnx.ModelProto()
    try:
        model.ParseFromString(data)
        other.ParseFromString(pick(random, others))
    except DecodeError:
        return of_bytes(data, others, random)
    messages = _messages(model)
    strangers = [*messages, *_messages(other)]
    for _ in range(int(random.integers(1, 4))):
        message = pick(random, messages)
        fields = [field for field, _ in message.ListFields()]
        if not fields or random.random() < 0.05:
            fields = list(message.DESCRIPTOR.fields)
        field = pick(random, fields)
        like = [item for item in strangers if item.DESCRIPTOR is message.DESCRIPTOR]
        is_list = not isinstance(getattr(message, field.name), bytes | str | int | float) and not hasattr(
            getattr(message, field.name), "ListFields"
        )
        kind = random.random()
        try:
            if kind < 0.15:
                message.ClearField(field.name)
            elif kind < 0.35:
                message.CopyFrom(copy.deepcopy(pick(random, like)))
            elif is_list:
                _change_list(message, field, random, strangers)
            elif field.type == field.TYPE_MESSAGE:
                same = [item for item in strangers if item.DESCRIPTOR is field.message_type]
                if same:
                    getattr(message, field.name).CopyFrom(copy.deepcopy(pick(random, same)))
            elif field.name == "op_type":
                message.op_type = pick(random, sorted(OPERATORS))
            else:
                value = getattr(message, field.name)
                seen = [getattr(item, field.name) for item in like]
                setattr(message, field.name, _other(value, seen, random))
        except (TypeError, ValueError, OverflowError, RecursionError):
            continue
    return bytes(model.SerializeToString())


def _other(value: Any, seen: list[Any], random: Random) -> Any:
    if seen and random.random() < 0.5:
        return pick(random, seen)
    if isinstance(value, bytes):
        return of_bytes(value, [value or b"?"], random)
    if isinstance(value, str):
        return pick(random, (*map(str, seen), "", "x", "x/../y", "\n", "N" * 200, "constant"))
    if isinstance(value, float):
        return pick(random, (0.0, -1.0, 1e38, float("nan"), float("inf"), 1e-45))
    return pick(random, (*NUMBERS, value + 1, value - 1, -value))


def _change_list(message: Any, field: Any, random: Random, strangers: list[Any]) -> None:
    """Lost, doubled, swapped or changed items of a repeated field."""
    items = [copy.deepcopy(item) for item in getattr(message, field.name)]
    kind = int(random.integers(4))
    place = int(random.integers(len(items) + 1))
    if kind == 0 and items:
        del items[min(place, len(items) - 1)]
    elif kind == 1 and items:
        items.insert(place, copy.deepcopy(pick(random, items)))
    elif kind == 2 and len(items) > 1:
        one, two = random.choice(len(items), 2, replace=False)
        items[one], items[two] = items[two], items[one]
    elif field.type == field.TYPE_MESSAGE:
        same = [item for item in strangers if item.DESCRIPTOR is field.message_type]
        items[place:place] = [copy.deepcopy(pick(random, same))] if same else []
    else:
        seen = [
            value for item in strangers if item.DESCRIPTOR is message.DESCRIPTOR for value in getattr(item, field.name)
        ]
        if items:
            items[min(place, len(items) - 1)] = _other(items[0], seen, random)
        elif seen:
            items = [pick(random, seen)]
    message.ClearField(field.name)
    getattr(message, field.name).extend(items)


def changed(target: Target, data: bytes, others: list[bytes], random: Random) -> bytes:
    """A file with one to three changes."""
    for _ in range(int(random.integers(1, 4))):
        change = target.change if target.change and random.random() < 0.7 else of_bytes
        data = change(data, others, random)[:LONGEST]
    return data


# -- readers ---------------------------------------------------------------------------------------------------------


def small_model() -> bn.Model:
    """Of 150 parameters: what is read into by the readers of weights, and what is read by the others."""
    images = layers.Input(2, 5, 4, name="image")()
    node = layers.Conv2D(3, 3, padding="same", activation="relu", name="conv")(images)
    node = node + layers.Conv2D(3, 1, bias=False, name="shortcut")(images)
    node = layers.BatchNorm(name="norm")(node)
    node = layers.GlobalAveragePool(name="pool")(node)
    return bn.Model(images, layers.Dense(4, name="logits")(node), class_names=["a", "b", "c", "d"])


@cache
def _reading() -> bn.Model:
    """The model that weights are read into."""
    return small_model()


def _written(suffix: str, write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"m{suffix}"
        write(path)
        return path.read_bytes()


def _onnx_seeds() -> Iterable[bytes]:
    """ONNX's own tests of nodes, and a network."""
    from onnx.backend.test.loader import load_model_tests

    from blobnet.onnx.bodies import KINDS
    from blobnet.onnx.operators import OPERATORS

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in load_model_tests(kind="node"):
            data = case.model.SerializeToString()
            if len(data) < 4_000 and all(node.op_type in OPERATORS.keys() | KINDS for node in case.model.graph.node):
                yield data
    yield _written(".onnx", lambda path: bn.onnx.save(small_model(), path))


def _onnx_load(path: Path) -> object:
    from blobnet.onnx.operation import SamplesMixedError

    try:
        return bn.onnx.load(path)
    except SamplesMixedError:
        return bn.onnx.load(path, samples=False)


def _hdf5_seeds() -> Iterable[bytes]:
    from blobnet.files.checkpoint import ModelFile, TrainingState, save

    model = small_model()
    state = TrainingState(3, 7, 5, {"kind": "SGD", "config": {}}, {"velocity": np.zeros(9, np.float32)}, {"a": [1]})
    loss = {"kind": "CrossEntropy", "config": {}}
    for file in (
        ModelFile(model.graph.description(), model.weights),
        ModelFile(model.graph.description(), model.weights, ("a", "b"), {"loss": [1.0, 0.5]}, loss, state),
    ):
        yield _written(".h5", lambda path, file=file: save(path, file))  # type: ignore[misc]


def _keras_seeds() -> Iterable[bytes]:
    ones = {key: np.ones(3, np.float32) for key in ("gamma", "beta", "moving_mean", "moving_variance")}
    arrays: Mapping[str, Mapping[str, Any]] = {
        "input_1": {},
        "conv": {"kernel": np.ones((3, 3, 2, 3), np.float32), "bias": np.ones(3, np.float32)},
        "short": {"kernel": np.ones((1, 1, 2, 3), np.float32)},
        "norm": ones,
        "dense": {"kernel": np.ones((3, 4), np.float32), "bias": np.ones(4, np.float32)},
    }
    model = small_model()
    # Files of Keras 2 take a process each, so most are of Keras 3.
    yield from [_written(".weights.h5", model.save_keras_weights)] * 7
    model.set_normalization([1, 2], [3, 4])
    yield from [_written(".weights.h5", model.save_keras_weights)] * 7
    yield _written(".h5", lambda path: keras_2(path, arrays))


def _safetensors_seeds() -> Iterable[bytes]:
    model = small_model()
    model.set_normalization([1, 2], [3, 4])
    yield _written(".safetensors", model.save_safetensors)


def _array_seeds(write: Callable[..., object], suffix: str) -> Iterable[bytes]:
    """A data set of three gray pictures."""
    arrays = {"x": np.arange(192, dtype=np.uint8).reshape(3, 1, 8, 8), "y": np.arange(3), "class_names": list("abc")}
    yield _written(suffix, lambda path: write(path, **arrays))


def _write_hdf5(path: Path, **arrays: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=arrays["x"], chunks=(2, 1, 8, 8), compression="gzip")
        file.update({"y": arrays["y"], "class_names": np.array(arrays["class_names"], "S")})


def _write_hdf5_texts(path: Path, **arrays: Any) -> None:
    with h5py.File(path, "w") as file:
        file.update(arrays)


def _data_seeds() -> Iterable[bytes]:
    # Texts of variable length take a process each, so most have none.
    yield from list(_array_seeds(_write_hdf5, ".h5")) * 7
    yield from _array_seeds(_write_hdf5_texts, ".h5")


def _dataset_load(path: Path) -> object:
    return np.asarray(bn.datasets.load(path).train.x)


def _program_seeds() -> Iterable[bytes]:
    make_folder(cache_folder())
    write_entry(cache_folder() / "entry", PROGRAM)
    yield (cache_folder() / "entry").read_bytes()


def _program_load(path: Path) -> object:
    (cache_folder() / "entry").write_bytes(path.read_bytes())
    found = read_entry(cache_folder() / "entry")
    assert found in (None, PROGRAM)
    return found


def _picture_seeds() -> Iterable[bytes]:
    from PIL import Image

    picture = Image.fromarray(np.arange(768, dtype=np.uint8).reshape(16, 16, 3))
    for kind, mode in (("PNG", "RGB"), ("PNG", "P"), ("JPEG", "RGB"), ("WEBP", "RGB"), ("BMP", "L"), ("GIF", "P")):
        yield _written(".png", lambda path, kind=kind, mode=mode: picture.convert(mode).save(path, kind))  # type: ignore[misc]


@cache
def _picture() -> Path:
    """One that is read."""
    path = Path(tempfile.mkdtemp(), "picture.png")
    path.write_bytes(next(iter(_picture_seeds())))
    return path


def _table_seeds() -> Iterable[bytes]:
    for rows in (
        "path,label,split\nP,a,train\nP,b,train\nP,b,test\n",
        "label; path\n7;P\n12;P\n",
        "file\tclass\tsplit\nP\tx\ttrain\nP\ty\tval\n\nP\ty\t\n",
    ):
        yield rows.replace("P", str(_picture())).encode()


def _classes_seeds() -> Iterable[bytes]:
    for index in ({"cat": 0, "dog": 1}, {"0": "cat", "1": "dog"}, {"0": ["n1", "cat"], "1": ["n2", "dog"]}):
        yield json.dumps(index).encode()


def _classes_load(path: Path) -> object:
    names = []
    for name in (CLASS_INDEX, CLASS_FILE):
        path.with_name(name).write_bytes(path.read_bytes())
        try:
            names += listed_classes(path.parent)
        finally:
            path.with_name(name).unlink()
    return names


#: Stands in a changed file for the seal that it must have to be believed: readers must bear what is sealed, too.
SEALED = "sealed"
TUNED = Tunings({"device": "Some CPU", "platform": "Some Platform", "driver": "1", "processor": ""})
PROGRAM = b"\x7fELF" * 99


@cache
def _table() -> Table:
    """Of a product of two matrices."""
    program = function("R[i, j : 8, 6] = +(A[i, k] * B[k, j])").program(A=(8, 5), B=(5, 6))
    layouts = {tensor.name: Layout.padded(tensor.shape) for tensor in (*program.inputs, *program.outputs)}
    return flatten(program.statements[0], layouts)


def _tuning_seeds() -> Iterable[bytes]:
    task, way = Task("forward", "3x8x8:4k3", 2, "tf32"), Variant("tiled", "64x64")
    TUNED.record(task, Winner(way, 1.5, Variant("direct", "4x4"), 2.5, "fast"))
    TUNED.mark_broken(BrokenVariant(way, "convolution", "forward"))
    TUNED.judge(
        {BrokenVariant(Variant("strip"), "dense", "forward"): "wrong"},
        [BrokenVariant(Variant("direct"), "dense", "forward")],
    )
    TUNED.record_speeds(flops=1e12, bandwidth=1e11)
    yield json.dumps({**json.loads(TUNED.path.read_bytes()), "seal": SEALED}).encode()


def _tuning_load(path: Path) -> object:
    data = path.read_bytes()
    with contextlib.suppress(ValueError, RecursionError, AttributeError, TypeError):
        content = json.loads(data)
        if content.pop("seal", None) == SEALED:
            data = json.dumps({**content, "seal": TUNED._seal(content)}).encode()
    TUNED.path.write_bytes(data)
    found = Tunings(TUNED.identity)
    found.choices.near(Task("forward", "3x8x8:4k3", 3))
    found.record_speeds(flops=2e12)
    return found.broken, found.verified


def _schedule_seeds() -> Iterable[bytes]:
    for text in (
        "tile i 2x2x4; order i j k; unroll k",
        "vector j 2; tile j 1x1x2; pack B",
        "rows i 8x4; columns j 8x4; depth k 4; pack A B; split k 2",
        "cut k 5; unroll k/cut; local A B; share k 1; chunk k 5; wide A; ahead 2",
        "rows i 8x4; columns j 8x4; depth k 5; along k",
    ):
        yield text.encode()


def _schedule_load(path: Path) -> object:
    """The file as it is, and sealed, whatever it says."""
    data, table = path.read_bytes(), _table()
    texts: list[str] = []
    folder = schedule_cache._folder()
    assert folder
    entry = folder / schedule_cache.key_of(table, HOST)
    for write in (Path.write_bytes, write_entry):
        write(entry, data)
        schedule_cache._KNOWN.clear()
        schedule = schedule_cache.cached_schedule(table, HOST, Schedule)
        made = scheduled(table, schedule, Buffers({}))
        texts += [generate(part, chosen).text for part, chosen in made]
    return texts


TARGETS = {
    "tuning": Target(".json", _tuning_seeds, _tuning_load, of_json),
    "schedule": Target(".txt", _schedule_seeds, _schedule_load),
    "program": Target(".program", _program_seeds, _program_load),
    "data": Target(".h5", _data_seeds, _dataset_load),
    "npz": Target(
        ".npz",
        lambda: (*_array_seeds(np.savez, ".npz"), *_array_seeds(np.savez_compressed, ".npz")),
        _dataset_load,
    ),
    "npy": Target(
        ".npy",
        lambda: _array_seeds(lambda path, **arrays: np.save(path, arrays["x"]), ".npy"),
        lambda path: np.asarray(read_samples(path)),
        of_npy,
    ),
    "picture": Target(".png", _picture_seeds, lambda path: bn.datasets.read_image(path, (3, 8, 8))),
    "table": Target(
        ".csv", _table_seeds, lambda path: np.asarray(read_picture_table(path, Reading((4, 4), 0)).train.x)
    ),
    "classes": Target(".json", _classes_seeds, _classes_load, of_json),
    "onnx": Target(".onnx", _onnx_seeds, _onnx_load, of_onnx),
    "hdf5": Target(".h5", _hdf5_seeds, lambda path: bn.load(path)),
    "keras": Target(".weights.h5", _keras_seeds, lambda path: _reading().load_keras_weights(path)),
    "safetensors": Target(
        ".safetensors", _safetensors_seeds, lambda path: _reading().load_safetensors(path), of_safetensors
    ),
}


def refused(*args: Any, **kwargs: Any) -> None:
    """Stands for ``Device.__init__``: no file may get as far as a device."""
    raise AssertionError("a device was asked for")


def offence(load: Callable[[Path], object], path: Path) -> tuple[str | None, set[Any]]:
    """What a reader does that it must not, if anything, and what it reached.

    Returns:
        a name for an error that is none of blobnet's, and the lines that ran with the rule that was broken.
    """
    reached: set[Any] = set()

    def local(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            reached.add((frame.f_code.co_filename, frame.f_lineno))
        return local

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        return local if frame.f_code.co_filename.startswith(ROOTS) else None

    sys.settrace(entered)
    try:
        load(path)
        reached.add("a model")
        return None, reached
    except BlobnetError as error:
        sys.settrace(None)
        reached.add(re.sub(r"[\d\W]+", " ", str(error).partition("Received")[0].replace(str(path), ""))[:120])
        return None, reached
    except BaseException as error:
        sys.settrace(None)
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(ROOTS)]
        place = f"{Path(own[-1].filename).stem}-{own[-1].lineno}" if own else "elsewhere"
        return f"{type(error).__name__}-{place}", reached
    finally:
        sys.settrace(None)


# -- the loop --------------------------------------------------------------------------------------------------------


def _round(target: Target, kept: list[bytes], seen: set[Any], seed: int, path: Path, pipe: int, until: float) -> None:
    """Reads changed files, in a process of its own; writes what came of each into a pipe."""
    random = np.random.default_rng(seed)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for _ in range(ROUND):
        if time.monotonic() > until:
            break
        # Half of the time of what came last.
        data = kept[-1 - int(random.integers(min(len(kept), 64)))] if random.random() < 0.5 else pick(random, kept)
        data = changed(target, data, kept, random)
        path.write_bytes(data)
        os.write(pipe, struct.pack("<I", 0))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        found, reached = offence(target.load, path)
        news = reached - seen
        seen |= news
        message = pickle.dumps((found, data if news or found else b"", news))
        message = struct.pack("<I", len(message)) + message
        while message:
            message = message[os.write(pipe, message) :]


def _read(pipe: int, count: int, seconds: float) -> bytes:
    """So many bytes of a pipe; fewer where it ends.

    Raises:
        TimeoutError: nothing comes.
    """
    found = b""
    while len(found) < count:
        if not select.select([pipe], [], [], seconds)[0]:
            raise TimeoutError
        part = os.read(pipe, count - len(found))
        if not part:
            break
        found += part
    return found


def fuzz(target: Target, minutes: float, seed: int, output: Path) -> tuple[int, dict[str, bytes]]:
    """How many files were read, and the findings by their names."""
    kept, seen, findings, count = list[bytes](), set[Any](), dict[str, bytes](), 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{target.suffix}"
        for data in target.seeds():
            path.write_bytes(data)
            found, reached = offence(target.load, path)
            if found:
                findings.setdefault(found, data)
            elif reached - seen or len(kept) < 16:
                kept.append(data)
            seen |= reached
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            seed += 1
            reading, writing = os.pipe()
            child = os.fork()
            if not child:
                os.close(reading)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Libraries' complaints of damage.
                _round(target, kept, seen, seed, path, writing, until)
                os._exit(0)
            os.close(writing)
            started = False
            while True:
                try:
                    head = _read(reading, 4, PATIENCE)
                    size = struct.unpack("<I", head)[0] if len(head) == 4 else None
                    body = _read(reading, size, PATIENCE) if size else b""
                except TimeoutError:
                    os.kill(child, signal.SIGKILL)
                    findings.setdefault("hang", path.read_bytes())
                    break
                if size is None:
                    break
                started = size == 0
                if size:
                    count += 1
                    name, data, news = pickle.loads(body)
                    seen |= news
                    if name:
                        findings.setdefault(name, data)
                    elif news:
                        kept.append(data)
            os.close(reading)
            _, status = os.waitpid(child, 0)
            if started and os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
                end = signal.Signals(os.WTERMSIG(status)).name
                findings.setdefault("hang" if end == "SIGPROF" else end, path.read_bytes())
            for name, data in findings.items():
                (output / f"{name}{target.suffix}").write_bytes(data)
            print(f"{count:,} files, {len(seen):,} reached, {len(kept):,} kept, {len(findings)} findings", flush=True)
    return count, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="folder for findings")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    Device.__init__ = refused  # type: ignore[method-assign]
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        _, findings = fuzz(TARGETS[arguments.target], arguments.minutes, arguments.seed << 32, arguments.output)
    for name in sorted(findings):
        print(name)
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
