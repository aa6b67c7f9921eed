"""The command line: options, errors and exit statuses. The commands themselves are in blobnet.command_line.

Status 0: done; 1: an error that is explained on stderr; 2: a wrong command line; 130: Ctrl-C; 143: SIGTERM in
a training.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from blobnet import __version__
from blobnet.command_line import option_types
from blobnet.command_line.parser import Parser
from blobnet.device.tuning import LEVELS
from blobnet.errors import (
    BlobnetError,
    BlobnetWarning,
    DeviceError,
    FileError,
    OptionError,
    PlanError,
    ShapeError,
    file_error,
)
from blobnet.support.interrupt import STATUS, TERMINATED, WORD, Terminated, as_exception, at_once
from blobnet.support.kinds import option_names, public_names, squeezed
from blobnet.support.picture_kinds import PICTURE_KINDS

#: What all ranks do that mpiexec starts; of anything else the first does all.
_SHARED = ("train", "evaluate", "predict", "devices")

_MODEL = "one of blobnet's networks (lenet5, resnet50, ...: 'blobnet train --help' lists them); or "
_MODEL += "path/to/file.py:function, a function of yours that returns a Model"
_DATASET = "digits, mnist or fashion-mnist; or the path of a .npz or HDF5 file with x and y, of a folder with x.npy "
_DATASET += (
    "and y.npy, of a folder that holds a folder of pictures for each class, or the folders images and masks, or of a "
)
_DATASET += "CSV file with the columns path and label"
_DEVICE = "a device: part of its name, or its address (see 'blobnet devices'); default: $BLOBNET_DEVICE, else the best"

_MAIN_EPILOG = """\
first steps:
  blobnet train lenet5 --dataset digits     (ships with blobnet, takes seconds)
  blobnet train lenet5 --dataset fashion-mnist --epochs 5 --output lenet5.h5
  blobnet predict lenet5.h5 shirt.png

'blobnet COMMAND --help' explains a command.
"""
_TRAIN_EPILOG = """\
networks:
{networks}

your own model:
  a function that returns a blobnet.Model, in any Python file. Of input_shape,
  classes, class_names and seed it is given those that it takes. The folder of
  the file is put on sys.path.

resuming:
  after every epoch the output file is replaced whole. The same command with
  --resume goes on from it, and ends with the same weights, bit for bit, as if
  it had never been interrupted. With more --epochs a training goes on that is
  finished: the schedule is spread over all of them. Another learning rate and
  schedule may be given; without, they are those of the file.

from another training:
  --init-from takes the weights of a file. The layers up to --freeze-until keep
  them, cost what they cost in prediction, and need no memory for training.
  Samples are normalised by the statistics of the new data set.

examples:
  blobnet train lenet5 --dataset fashion-mnist --epochs 5 --plot curves.png
  blobnet train --init-from lenet5.h5 --freeze-until pool2 --dataset mnist
  blobnet train resnet8 --dataset mnist --warmup-epochs 1 --save-best
  blobnet train fashion_cnn --dataset fashion-mnist --augment crop=2,flip
  blobnet train nets/small.py:small --dataset pictures/ --image-size 32x32
"""
_PREDICT_EPILOG = """\
Pictures are taken as they are: fashion-mnist and mnist are white on black, and
a picture that is black on white is not inverted. Another size is resized.
A .npy file holds (height, width) or (units, height, width), or with one axis
in front many of these.

An ONNX file that leaves sizes open, or of which the host computes a part (a
detector), runs on each picture in its own size, or on the arrays of a file,
which have the names of its inputs: all outputs are printed, or go to --npz.
Pictures are 0 to 255: what the file does not scale itself is not scaled.
"""
_SHOW_EPILOG = """\
A data set is drawn as a sheet of samples, the first that a training gets:
changed as --augment says, and normalised.

A model is drawn as its graph with the spread of each layer's weights and, with
--dataset, of its values and gradients for a batch; and the first filters as
pictures. Units that are the same for all samples are named.

examples:
  blobnet show fashion-mnist --augment crop=2,flip
  blobnet show pictures/ --image-size 64x64 --count 100 --plot sheet.png
  blobnet show lenet5.h5 --dataset fashion-mnist
"""
_PLAN_EPILOG = """\
columns:
  storage  blobs that share memory, or a layer's own array; '+': in the buffer
           of the line above, when that is no longer needed
  planes   units x height x width of the data
  bytes    for the whole batch
  halo     how much of them is zeros around the data
  buffer   bytes of the allocation
"""
_BENCH_EPILOG = """\
what:
  conv     convolutions: forward, backward data, backward weights
  layer    all other layers: dense, pooling, norms, activations, sums, dropout
  model    whole steps of training and inference

subject:
  a network (resnet50, vgg16, mobilenet_v2, alexnet, ...): its distinct layers
  a suite: anchors (24 convolutions of five networks), unet1d (1-D)
  a shape: 64x56x56:128k3s2p1  128 filters of 3x3, stride 2, padding 1
           1024x4:1024k5p2     1-D; d2 dilation, g64 groups, b at the end a bias
           4096:dense1000, 64x112x112:maxpool3s2p1, 64x56x56:norm, 64x56x56:relu

times:
  medians. On a GPU the device's own times of the launches, on a CPU the wall's.
  Flops count as of a direct convolution, bytes once each; the floor is what the
  device needs for them at the peak and bandwidth measured in the same run. Sets
  of buffers take turns, so that caches do not flatter. A ratio above 1 means
  that blobnet is faster than PyTorch, wall time against wall time.

examples:
  blobnet bench conv resnet50 --batch-size 8 --against torch
  blobnet bench conv 64x56x56:64k3p1 --direction forward
  blobnet bench model resnet18 --size 64 --batch-size 32 --against torch
  blobnet bench fit mobilenet_v2 --device NVIDIA
"""
_TUNE_EPILOG = """\
Measures for every distinct convolution of the model, forward and backward, the
candidates that a cost model puts first, and keeps the fastest, once its results
are checked, for this device and driver. Training and prediction use it from
then on. What is known is not measured again; Ctrl-C keeps what was found.

Times mean little while others use the device. A winner counts for batches of
half to twice the size that it was measured with, unless one is nearer.

columns:
  n      how often the model has it
  ms     the time of what is used without tuning
  tuned  the time of the winner
"""


_DOCTOR_EPILOG = """\
Runs each way to compute convolutions and dense layers, in each direction, and
other layers on small random odd shapes, in memory full of traps, and compares
with float64 references. What crashes or hangs a driver does so in a process of
its own. Status 1: something is wrong; plans do without it from now on.

columns:
  error    the worst of all numbers, over the root mean square of their array
  verdict  ok; wrong (numbers); stray write (outside of what is the kernel's);
           not repeatable (two runs differ); not built; crashed; hung; failed
           (the driver says so); not here (nothing of that kind to check)
  ms       of the check's launches
"""
_CONVERT_EPILOG = """\
kinds of files:
  .h5            a model of blobnet's, with its classes and training; or weights
                 of Keras 2, to read
  .onnx          a network with its weights and classes
  .weights.h5    weights of Keras 3
  .safetensors   weights by PyTorch's names: torchvision's for its networks
The last two, and Keras 2's, are weights alone, for which --model is the
network. A .pt file is refused: reading it can run code. --input-shape is also
for .onnx files that leave sizes open.

examples:
  blobnet convert lenet5.h5 lenet5.onnx
  blobnet convert resnet18.safetensors resnet18.h5 --model resnet18
  blobnet convert model.onnx model.weights.h5
"""
_COMPILE_EPILOG = """\
text:
  statements of the contraction language (see blobnet.contraction), with or
  without a head that names inputs and outputs; or a file that holds them

examples:
  blobnet compile "O[n, m] = +(A[n, k] * B[k, m])" --shapes A=99x64 B=64x50
  blobnet compile "O[n, o, x : N, F, 28] = +(I[n, i, x+a-1] * W[o, i, a])" \\
    --shapes I=8x64x28 W=64x64x3 --sizes N=8 F=64 --show
  blobnet compile conv.txt --shapes I=8x64x28x28 W=64x64x3x3 --gradients W
  blobnet compile conv.txt --shapes I=8x64x28x28 W=64x64x3x3 --model seed
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit status."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may be any bytes
    try:
        try:
            with _printed_warnings():
                status = _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()  # What --help prints too.
    except BlobnetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except MemoryError as error:
        rule, hint = "this machine must have room for the model and its data", "use smaller samples or batches."
        received = {"cause": error} if str(error) else {}  # What NumPy says of the array; Python says nothing.
        print(f"error: {BlobnetError('memory', rule, hint=hint, **received)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or WORD, file=sys.stderr)
        return TERMINATED if isinstance(interrupt, Terminated) else STATUS
    except BrokenPipeError:
        # Whoever read this has enough (blobnet devices | head -1).
        _forget_output()
        return 141
    except OSError as error:  # A folder that this user may not enter, a full disk behind stdout, ...
        _forget_output()
        with contextlib.suppress(OSError):
            print(f"error: {file_error(error)}", file=sys.stderr)
        return 1
    return status


def _open_streams() -> None:
    """Opens the standard streams that the caller has closed, so that no file gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                os.fstat(number)
                continue
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, "w" if number else "r", closefd=False))


def _forget_output() -> None:
    """Has Python's last flush not complain of what could not be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def _printed_warnings() -> Iterator[None]:
    """Prints blobnet's own warnings in the form of its errors; others as ever."""
    show_others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, BlobnetWarning):
            print(f"warning: {message}", file=sys.stderr)
        else:
            show_others(message, category, *place)

    with warnings.catch_warnings():
        warnings.simplefilter("always", BlobnetWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _run(arguments: Sequence[str]) -> int:
    parser, commands = make_parser()
    options, unknown = parser.parse_known_args(arguments)
    if options.command is None:
        parser.refuse_unknown(unknown)
        parser.print_help(sys.stderr)
        return 2
    command = commands[options.command]
    command.refuse_unknown(unknown)
    importlib.import_module("blobnet.files.atomic").check_working_folder()
    if getattr(options, "precision", "fp32") != "fp32":
        _check_precision(command, options)
    if options.command == "train":
        _check_train(command, options)
    elif options.command == "bench":
        _check_bench(command, options)
    with at_once():
        run = importlib.import_module(f"blobnet.command_line.{options.command}").run
        parallel = importlib.import_module("blobnet.parallel.world")
    with as_exception():
        world = parallel.World.started()
        if not world.is_first and options.command not in _SHARED:
            return 0
        with world.ending(), world.speaking():
            status: int = run(options)
            sys.stdout.flush()
    return status


def make_parser() -> tuple[Parser, dict[str, Parser]]:
    """The whole command line, and its commands."""
    parser = Parser(
        prog="blobnet",
        description="Train and run convolutional networks through OpenCL, on a CPU or on any GPU.",
        epilog=_MAIN_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"blobnet {__version__}")
    group = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)
    commands: dict[str, Parser] = {}

    def command(name: str, arguments: str, summary: str, epilog: str | None = None) -> Parser:
        usage, description = f"blobnet {name} {arguments}".strip(), f"{summary[0].upper()}{summary[1:]}."
        commands[name] = group.add_parser(name, usage=usage, help=summary, description=description, epilog=epilog)
        return commands[name]

    data, file = "--dataset DATA [options]", "FILE.h5"
    networks = textwrap.fill(", ".join(public_names("models")), 78, initial_indent="  ", subsequent_indent="  ")
    epilog = _TRAIN_EPILOG.format(networks=networks)
    _add_train(command("train", f"[MODEL] {data}", "train a model and keep it in an HDF5 file", epilog))
    _add_evaluate(command("evaluate", f"{file} {data}", "measure a trained model on a data set"))
    summary = "say what a trained model sees in pictures"
    _add_predict(command("predict", f"{file} IMAGE [IMAGE ...] [options]", summary, _PREDICT_EPILOG))
    _add_show(command("show", "WHAT [options]", "draw a data set or a model", _SHOW_EPILOG))
    devices = command("devices", "[--facts]", "list the OpenCL devices and mark the default one")
    devices.add_argument("--facts", action="store_true", help="show what is known of each, and where it comes from")
    _add_doctor(command("doctor", "[options]", "check that blobnet computes rightly on a device", _DOCTOR_EPILOG))
    _add_plan(command("plan", "MODEL [options]", "show the memory that a model needs", _PLAN_EPILOG))
    _add_bench(command("bench", "WHAT [SUBJECT] [options]", "time kernels and networks", _BENCH_EPILOG))
    _add_tune(command("tune", "MODEL [options]", "find the fastest kernels for a model on a device", _TUNE_EPILOG))
    summary = "show what a contraction becomes on a device"
    _add_compile(command("compile", '"TEXT" --shapes NAME=SHAPE ... [options]', summary, _COMPILE_EPILOG))
    summary = "write a model or its weights as another kind of file"
    _add_convert(command("convert", "IN OUT [options]", summary, _CONVERT_EPILOG))
    inspect = command("inspect", file, "show what a model file holds")
    inspect.add_argument("file", metavar="FILE.h5", type=Path, help="a model file")
    return parser, commands


def _add_train(parser: Parser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help=f"{_MODEL}; with --init-from, without it that of the file"
    )
    group = parser.add_argument_group("data")
    _add_data(group)
    group.add_argument(
        "--validation-fraction",
        metavar="F",
        type=option_types.fraction,
        help="the part of the training samples that is held out for validation (default: 0.1 if something is chosen by "
        "it or there is no test split, else none)",
    )
    group = parser.add_argument_group("training")
    group.add_argument(
        "--epochs",
        metavar="N",
        type=option_types.count,
        help="passes over the data, counted from the beginning (default: 5; with --resume as many as were planned)",
    )
    _add_batch_size(group, default=None)
    _add_optimizer(group)
    group.add_argument(
        "--learning-rate",
        metavar="X",
        type=option_types.number,
        help="default: 0.002, and 0.01 for sgd; the highest of a schedule",
    )
    group.add_argument(
        "--momentum", metavar="X", type=option_types.number, help="of optimizers that have one, as sgd (default: 0)"
    )
    group.add_argument("--weight-decay", metavar="X", type=option_types.number, help="default: 0, and 0.01 for adamw")
    group.add_argument(
        "--clip-norm", metavar="X", type=option_types.number, help="the largest norm of all gradients together"
    )
    group.add_argument(
        "--loss",
        metavar="NAME",
        type=option_types.loss,
        help=f"{_or(option_names('losses', 'Loss', option_types.NOT_OPTIONS))}; for several outputs "
        "mask=dice,speed=huber (default: cross-entropy for classes, mean-squared-error for targets)",
    )
    group.add_argument(
        "--loss-weights",
        metavar="LIST",
        type=option_types.numbers_by_name,
        help="of several outputs, what their losses are multiplied by: mask=1,speed=0.5 (default: 1)",
    )
    group.add_argument(
        "--label-smoothing", metavar="X", type=option_types.number, help="of the cross-entropies and focal (default: 0)"
    )
    group.add_argument(
        "--class-weights",
        metavar="balanced",
        choices=("balanced",),
        help="balanced: all classes weigh the same, however many samples they have",
    )
    group.add_argument(
        "--accumulate",
        metavar="N",
        type=option_types.count,
        help="batches of a step, whose gradients are added up (default: 1)",
    )
    group.add_argument(
        "--fit-memory",
        action="store_true",
        default=None,
        help="compute a batch in parts, whose gradients are added up, where the device has no memory for all of it",
    )
    group.add_argument(
        "--shards",
        metavar="N",
        type=option_types.count,
        help="parts of a batch, added in a fixed order: up to so many ranks give the same bits (default: 1, under "
        "mpiexec 8)",
    )
    text = "how ranks add: ordered, with the same bits for any number of them, or fast, as MPI likes"
    _add_choice(group, "--reduction", ("ordered", "fast"), text)
    group.add_argument(
        "--sync-batch-norm",
        action="store_true",
        default=None,
        help="have batch norms normalise a batch over all its shards, and not each by itself",
    )
    group.add_argument(
        "--batch-size-per-device",
        metavar="N",
        type=option_types.count,
        help="samples a step of each rank, in place of --batch-size, which is that of all",
    )
    group.add_argument(
        "--average",
        metavar="X",
        type=option_types.number,
        help="keep a moving average of the weights, of which a step keeps this part: 0.999 say (default: none)",
    )
    _add_augment(group)
    names = option_names("schedules", "Schedule", option_types.NOT_OPTIONS)
    text = "step is x0.1 every few epochs, cosine (the default) goes down to 0 over --epochs"
    _add_kind(group, "--schedule", names, f"of the learning rate: {_or(names)}; {text}")
    group.add_argument(
        "--step-epochs", metavar="N", type=option_types.count, help="epochs of a step (default: a third of --epochs)"
    )
    group.add_argument(
        "--warmup-epochs",
        metavar="X",
        type=option_types.number,
        help="epochs in which a cosine's rate first rises (default: 0)",
    )
    group.add_argument(
        "--early-stopping",
        metavar="N",
        type=option_types.count,
        help="stop when the validation loss has not fallen for N epochs; the file keeps the best epoch",
    )
    group.add_argument(
        "--save-best",
        action="store_true",
        help="keep the epoch with the lowest validation loss, not the last",
    )
    group.add_argument(
        "--plateau",
        metavar="N",
        type=option_types.count,
        help="halve the learning rate when the validation loss has not fallen for N epochs",
    )
    group.add_argument(
        "--seed",
        metavar="N",
        type=option_types.seed,
        help="of weights, order, augmentation and dropout (default: 0)",
    )
    group = parser.add_argument_group("weights of another training")
    group.add_argument(
        "--init-from",
        metavar="FILE.h5",
        type=Path,
        help="start from the weights of this file (or .onnx), with a new last layer; with MODEL, where layers have "
        "the same names",
    )
    group.add_argument(
        "--classes",
        metavar="N",
        type=option_types.count,
        help="outputs of the model (default: the classes of the data)",
    )
    _add_freeze(group)
    group = parser.add_argument_group("files")
    group.add_argument(
        "--output", metavar="FILE.h5", type=Path, help="the model file (default: the model's name and .h5)"
    )
    either = group.add_mutually_exclusive_group()
    either.add_argument("--resume", action="store_true", help="go on with the training in the output file")
    either.add_argument("--overwrite", action="store_true", help="replace an output file that is there")
    _add_picture(group, "--plot", "draw the training curves")
    group.add_argument(
        "--checkpoint-steps",
        metavar="N",
        type=option_types.count,
        help="also write the output file every N steps in the middle of an epoch, and at Ctrl-C or SIGTERM (default: "
        "after every epoch alone)",
    )
    group.add_argument(
        "--timeout",
        metavar="N",
        type=option_types.count,
        help="end with an error where no step, or validation, ends for so many seconds, since a device or a disk hangs "
        "(default: wait for ever)",
    )
    group.add_argument("--csv", metavar="FILE", type=Path, help="log the metrics, a line an epoch")
    group.add_argument(
        "--tensorboard", metavar="DIR", type=Path, help="log the metrics for TensorBoard (needs tensorboardX)"
    )
    group = parser.add_argument_group("device")
    _add_device_and_precision(group)
    group.add_argument(
        "--check", action="store_true", help="check every launch for writes where it must not write (slow)"
    )
    group.add_argument(
        "--verify",
        action="store_true",
        help="first check the ways to compute that were never used on this device and driver, as 'blobnet doctor' does",
    )


def _add_evaluate(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE.h5", type=Path, help="a model file; or .onnx")
    _add_data(parser)
    _add_batch_size(parser)
    parser.add_argument(
        "--report", action="store_true", help="print precision, recall, F1, IoU and AUC of each class (classes only)"
    )
    _add_picture(parser, "--matrix", "draw the confusion matrix", classes_only=True)
    parser.add_argument(
        "--mistakes",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="draw the worst mistakes, with the truth and what was said (.png, .pdf or .svg; needs matplotlib), or "
        "list all of them, the worst first (.csv); may come twice",
    )
    _add_device_and_precision(parser)


def _add_show(parser: Parser) -> None:
    what = "a data set, as --dataset of train takes it; or a model file, or one of the models of train as it starts"
    parser.add_argument("what", metavar="WHAT", help=what)
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        help="the picture (.png, .pdf or .svg; default: WHAT's name and -samples.png or -layers.png, here)",
    )
    parser.add_argument(
        "--count",
        metavar="N",
        type=option_types.count,
        help="samples to draw (default: 40), or to run the model on (default: 64)",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=option_types.seed,
        default=0,
        help="of the samples' order, of augmentation and of dropout (default: 0)",
    )
    _add_augment(parser.add_argument_group("for a data set"))
    group = parser.add_argument_group("for a model")
    group.add_argument("--dataset", metavar="DATA", help="run the model on samples of this data set, and back")
    _add_reading(parser.add_argument_group("data"))
    _add_device(parser.add_argument_group("device"))


def _add_predict(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE.h5", type=Path, help="a model file; or .onnx")
    parser.add_argument(
        "images",
        metavar="IMAGE",
        nargs="+",
        help=f"a picture ({PICTURE_KINDS}; needs Pillow), a .npy array, a folder of these, or a .npz, HDF5 or .npy "
        "file of samples (x_test, else x)",
    )
    parser.add_argument(
        "--top", metavar="K", type=option_types.count, default=1, help="show the K best classes of each (default: 1)"
    )
    parser.add_argument(
        "--csv", metavar="FILE", type=Path, help="write all probabilities, a line a picture, instead of printing"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all probabilities as JSON instead of printing")
    parser.add_argument(
        "--npz",
        metavar="FILE",
        type=Path,
        help="write the model's outputs, whatever their shape, as arrays of their names",
    )
    parser.add_argument(
        "--masks",
        metavar="DIR",
        type=Path,
        help="for a model that gives a class for each position: write PNG files whose palette's indices are the "
        "classes, in the pictures' sizes",
    )
    _add_device_and_precision(parser)


def _add_plan(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help=f"{_MODEL}; or a model file")
    _add_batch_size(parser)
    _add_shape_and_classes(parser)
    parser.add_argument("--inference", action="store_true", help="plan for prediction instead of training")
    group = parser.add_argument_group("many devices")
    group.add_argument(
        "--devices", metavar="N", type=option_types.count, help="plan a training on so many: what each needs and sends"
    )
    group.add_argument(
        "--devices-per-host", metavar="N", type=option_types.count, help="so many of them (default: all)"
    )
    group.add_argument("--shards", metavar="N", type=option_types.count, help="of a batch (default: 8, or --devices)")
    group.add_argument(
        "--step-time",
        metavar="MS",
        type=option_types.number,
        help="of one device with its part of the batch, as 'blobnet bench model' measures it, for the efficiency",
    )
    _add_freeze(parser)
    _add_optimizer(parser, "whose state is counted: ")
    _add_align(parser)
    _add_storage(parser)
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        type=option_types.memory,
        help="find the largest batch for this memory, 8GiB say, not a device's",
    )
    _add_picture(parser, "--plot", "draw what holds memory, launch by launch")
    _add_device(parser)


def _add_doctor(parser: Parser) -> None:
    parser.add_argument(
        "--device", metavar="DEVICE", help="check this device alone, not all: part of its name, or its address"
    )
    parser.add_argument("--thorough", action="store_true", help="check on more layers, and all that was tuned: minutes")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument(
        "--seed", metavar="N", type=option_types.seed, default=0, help="of shapes, memory and data (default: 0)"
    )
    parser.add_argument(
        "--limit", metavar="S", type=option_types.count, default=60, help="seconds for a check (default: 60)"
    )
    parser.add_argument(
        "--clear", action="store_true", help="check nothing: let plans use again what earlier checks denied them"
    )


def _add_convert(parser: Parser) -> None:
    parser.add_argument("input", metavar="IN", type=Path, help="a .h5, .onnx, .weights.h5 or .safetensors file")
    parser.add_argument("output", metavar="OUT", type=Path, help="the file to write, of any of these kinds")
    parser.add_argument("--model", metavar="MODEL", help=f"the network of weights: {_MODEL}; or a model file")
    _add_shape_and_classes(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace an output file that is there")


def _add_shape_and_classes(parser: Parser) -> None:
    parser.add_argument(
        "--input-shape",
        metavar="C,H,W",
        type=option_types.shape,
        help="of a sample (default: the model's own, or 1,28,28)",
    )
    parser.add_argument("--classes", metavar="N", type=option_types.count, help="default: the model's own, or 10")


def _add_bench(parser: Parser) -> None:
    what = ("conv", "layer", "model", "fit")
    parser.add_argument("what", metavar="WHAT", choices=what, help="conv, layer, model or fit")
    parser.add_argument(
        "subject", metavar="SUBJECT", nargs="?", help="a network, a suite or a shape (default for layers: resnet50)"
    )
    size = option_types.count
    parser.add_argument("--batch-size", metavar="N", type=size, help="samples (default: 8 on a CPU, 64 on a GPU)")
    _add_size(parser)
    parser.add_argument("--repeats", metavar="N", type=size, default=7, help="of which the median counts (default: 7)")
    _add_align(parser)
    _add_storage(parser)
    directions = ("forward", "backward", "backward data", "backward weights")
    parser.add_argument(
        "--direction",
        metavar="NAME",
        type=lambda text: text.replace("-", " "),
        choices=directions,
        help="forward, backward-data or backward-weights; backward for layers without weights (default: all)",
    )
    parser.add_argument(
        "--against", choices=("torch",), metavar="torch", help="measure PyTorch as well, in turn (it must be installed)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, in ms, and nothing else")
    _add_picture(parser, "--plot", "draw the roofline, of a model also the time of each kernel")
    group = parser.add_argument_group("for bench model (and --classes for bench fit)")
    group.add_argument("--classes", metavar="N", type=size, help="default: the model's own")
    group.add_argument("--launches", action="store_true", help="list every launch, not every kernel")
    group.add_argument(
        "--first-step",
        action="store_true",
        help="also time new processes, with empty program caches and with full ones",
    )
    group = parser.add_argument_group("for bench fit")
    group.add_argument("--augment", metavar="LIST", help="also train with it, in turn: as for 'blobnet train'")
    _add_device_and_precision(parser)


def _add_compile(parser: Parser) -> None:
    parser.add_argument("text", metavar="TEXT", help="a contraction, or a file that holds it")
    parser.add_argument(
        "--shapes", metavar="NAME=AxBxC", nargs="+", type=option_types.named_sizes, default=[], help="of the inputs"
    )
    parser.add_argument(
        "--sizes", metavar="NAME=N", nargs="+", type=option_types.named_size, default=[], help="of names in the text"
    )
    parser.add_argument(
        "--gradients", metavar="NAME", nargs="*", help="compile the gradients of these inputs instead; of all without"
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--schedule", metavar="TEXT", help="for the first table, instead of the one that is chosen")
    choice.add_argument(
        "--model",
        choices=["seed"],
        help="compile nothing: print tables, tiles and their scores by the model of seed 001, on the hardware of "
        "its example (docs/sources.md); with --show all tiles that its search looks at",
    )
    parser.add_argument("--show", action="store_true", help="print tables and OpenCL C too")
    _add_device(parser)


def _add_tune(parser: Parser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help=f"{_MODEL}; a model file; or a suite or shape of 'blobnet bench'"
    )
    _add_batch_size(parser)
    _add_size(parser)
    parser.add_argument("--inference", action="store_true", help="tune for prediction alone")
    parser.add_argument(
        "--level",
        metavar="NAME",
        choices=LEVELS,
        default="fast",
        help="none (show what is known), fast (the few best by predicted cost) or wide (default: fast)",
    )
    parser.add_argument("--again", action="store_true", help="measure also what is known")
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        help="put the winners also into a file for this device in DIR, in the form in which tunings ship",
    )
    _add_device_and_precision(parser)


_Options = argparse.ArgumentParser | argparse._ArgumentGroup


def _add_data(parser: _Options) -> None:
    parser.add_argument("--dataset", metavar="DATA", required=True, help=_DATASET)
    _add_reading(parser)


def _add_reading(parser: _Options) -> None:
    parser.add_argument(
        "--data-folder", metavar="DIR", type=Path, help="where the files of mnist or fashion-mnist are looked for first"
    )
    parser.add_argument(
        "--image-size",
        metavar="HxW",
        type=option_types.image_size,
        help="resize pictures to this height and width, 64x48 say, or 64 for both (default: those of a saved model)",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=option_types.count_or_none,
        help="processes that decode pictures; 0 does without (default: one for each core, for many pictures)",
    )
    parser.add_argument(
        "--skip-unreadable", action="store_true", help="leave out pictures that cannot be decoded, and say so"
    )


def _add_augment(parser: _Options) -> None:
    parser.add_argument(
        "--augment",
        metavar="LIST",
        help="change samples at random, in the order given, by the classes of blobnet.augment or their short names: "
        f"{_or(option_names('augment', 'Augmentation'))}; with a number, its first argument: crop=2,flip,rotate=10 say "
        "(default: nothing)",
    )


def _add_picture(parser: _Options, name: str, what: str, *, classes_only: bool = False) -> None:
    """An option that draws."""
    which = f".png, .pdf or .svg; needs matplotlib{'; classes only' if classes_only else ''}"
    parser.add_argument(name, metavar="FILE", type=Path, help=f"{what} ({which})")


def _add_size(parser: _Options) -> None:
    parser.add_argument("--size", metavar="N", type=option_types.count, help="build the network for samples of NxN")


def _add_align(parser: _Options) -> None:
    parser.add_argument(
        "--align",
        metavar="N",
        type=option_types.count,
        default=1,
        help="round the rows and the planes of blobs up to multiples of N numbers (default: 1)",
    )


def _add_choice(parser: _Options, name: str, choices: tuple[str, ...], text: str) -> None:
    """An option that is one of a few words, by default the first."""
    help_text = f"{text} (default: {choices[0]})"
    parser.add_argument(name, choices=choices, default=choices[0], metavar="NAME", help=help_text)


def _add_storage(parser: _Options) -> None:
    text = "what inference keeps between layers: float32, or float16 in half the memory"
    _add_choice(parser, "--storage", ("float32", "float16"), text)


def _add_batch_size(parser: _Options, default: int | None = 64) -> None:
    parser.add_argument(
        "--batch-size", metavar="N", type=option_types.count, default=default, help="samples a step (default: 64)"
    )


def _add_optimizer(parser: _Options, purpose: str = "") -> None:
    names = option_names("optimizers", "Optimizer")
    _add_kind(parser, "--optimizer", names, f"{purpose}{_or(names)} (default: adam)")


def _add_kind(parser: _Options, name: str, known: list[str], text: str) -> None:
    """An option that is the name of a class, in any spelling."""
    kinds = {squeezed(kind): kind for kind in known}
    choose = partial(_spelled_as, kinds)
    parser.add_argument(name, choices=known, type=choose, metavar="NAME", help=text)


def _spelled_as(kinds: Mapping[str, str], text: str) -> str:
    return kinds.get(squeezed(text), text)


def _or(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _add_freeze(parser: _Options) -> None:
    parser.add_argument(
        "--freeze",
        metavar="NAME",
        action="append",
        help="do not train this layer or parameter; also a pattern, 'stage1*' or '*/bias' say; may come several times",
    )
    parser.add_argument(
        "--freeze-until", metavar="LAYER", help="do not train this layer, and none that its values depend on"
    )


def _add_device(parser: _Options) -> None:
    parser.add_argument("--device", metavar="DEVICE", help=_DEVICE)


def _add_device_and_precision(parser: _Options) -> None:
    _add_device(parser)
    text = "fp32, or tf32 for convolutions on the tensor cores of NVIDIA GPUs"
    _add_choice(parser, "--precision", ("fp32", "tf32"), text)


def _check_precision(parser: Parser, options: argparse.Namespace) -> None:
    """Ends with a usage error if the device cannot compute with --precision."""
    from blobnet.device import discovery

    info = discovery.choose(options.device)
    try:
        discovery.check_precision(info, options.precision)
    except DeviceError as error:
        parser.error(f"--{error}")


def _check_bench(parser: Parser, options: argparse.Namespace) -> None:
    """Ends with a usage error if there is no such thing to measure, no room for it, or no PyTorch to compare with."""
    try:
        importlib.import_module("blobnet.command_line.bench").prepare(options)
    except (OptionError, ShapeError, FileError, PlanError) as error:
        parser.error(str(error))


def _check_train(parser: Parser, options: argparse.Namespace) -> None:
    """Ends with a usage error if an option belongs to another choice."""
    if options.model is None and options.init_from is None:
        parser.error("the following arguments are required: MODEL (or --init-from FILE.h5)")
    if options.warmup_epochs is not None and options.schedule not in (None, "cosine"):
        parser.error("--warmup-epochs needs --schedule cosine")
    if options.step_epochs is not None and options.schedule != "step":
        parser.error("--step-epochs needs --schedule step")
    if options.momentum is not None:
        family = importlib.import_module("blobnet.optimizers").Optimizer
        known = [name for name in option_names("optimizers", "Optimizer") if hasattr(family.named(name), "momentum")]
        if options.optimizer not in known:
            parser.error(f"--momentum needs --optimizer {_or(known)}")
