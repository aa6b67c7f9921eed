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
from collections.abc import Iterator, Sequence
from typing import Any

from blobnet import __version__
from blobnet.command_line.options import add_options, any_of, callback_rows, name_of
from blobnet.command_line.parser import Parser
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
from blobnet.support.kinds import option_names, public_names

#: What all ranks do that mpiexec starts; of anything else the first does all.
_SHARED = ("train", "evaluate", "predict", "devices")

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
  Samples are normalised by the statistics of the new data set. --pretrained
  takes the weights of a file of the Hugging Face hub, and how it normalises.

examples:
  blobnet train lenet5 --dataset fashion-mnist --epochs 5 --plot curves.png
  blobnet train --init-from lenet5.h5 --freeze-until pool2 --dataset mnist
  blobnet train resnet50 --pretrained hf:timm/resnet50.a1_in1k --dataset data/
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
_SWEEP_EPILOG = """\
The last arguments are a command of blobnet train, with ranges or choices in
place of values:
  1e-4..1e-1:log   numbers, drawn evenly by their logarithms
  0..0.3, 2..8     numbers, drawn evenly; whole ones where the option's are
  adam,sgd         one of these

Optuna chooses, and gives up trials that fall behind. What counts is the lowest
validation loss of a trial, after whichever epoch, as with --save-best. Only the
best model stays, beside the study. The command that trains it again is printed.

The same command goes on with its study, until that has --trials in all, and
may run several times at once. Ctrl-C prints the best so far.

examples:
  blobnet sweep --study digits.db train lenet5 --dataset digits \\
    --learning-rate 1e-4..1e-1:log --optimizer adam,sgd --batch-size 32,64,128
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
  conv, layer and --against torch need a checkout of blobnet's repository

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


#: The arguments, the purpose and the closing text of each command's help.
_COMMANDS: dict[str, tuple[str, str, str | None]] = {
    "train": ("[MODEL] --dataset DATA [options]", "train a model and keep it in an HDF5 file", _TRAIN_EPILOG),
    "evaluate": ("FILE.h5 --dataset DATA [options]", "measure a trained model on a data set", None),
    "report": ("FILE.h5 [--dataset DATA] [options]", "write a page that shows a model and what it does", None),
    "predict": ("FILE.h5 IMAGE [IMAGE ...] [options]", "say what a trained model sees in pictures", _PREDICT_EPILOG),
    "show": ("WHAT [options]", "draw a data set or a model", _SHOW_EPILOG),
    "speedrun": ("[options]", "train a small network as fast as is known, from several seeds", None),
    "sweep": (
        "--study FILE.db [options] train MODEL --dataset DATA --OPTION RANGE ...",
        "train with many settings, and keep the best model",
        _SWEEP_EPILOG,
    ),
    "lr-find": ("MODEL --dataset DATA [options]", "suggest a learning rate", None),
    "devices": ("[--facts]", "list the OpenCL devices and mark the default one", None),
    "doctor": ("[options]", "check that blobnet computes rightly on a device", _DOCTOR_EPILOG),
    "plan": ("MODEL [options]", "show the memory that a model needs", _PLAN_EPILOG),
    "bench": ("WHAT [SUBJECT] [options]", "time kernels and networks", _BENCH_EPILOG),
    "tune": ("MODEL [options]", "find the fastest kernels for a model on a device", _TUNE_EPILOG),
    "compile": (
        '"TEXT" --shapes NAME=SHAPE ... [options]',
        "show what a contraction becomes on a device",
        _COMPILE_EPILOG,
    ),
    "convert": ("IN OUT [options]", "write a model or its weights as another kind of file", _CONVERT_EPILOG),
    "inspect": ("FILE.h5", "show what a model file holds", None),
}


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
    options = parsed(arguments)
    with at_once():
        run = importlib.import_module(f"blobnet.command_line.{options.command.replace('-', '_')}").run
        parallel = importlib.import_module("blobnet.parallel.world")
    with as_exception():
        world = parallel.World.started()
        if not world.is_first and options.command not in _SHARED:
            return 0
        with world.ending(), world.speaking():
            status: int = run(options)
            sys.stdout.flush()
    return status


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; ends with a usage error where they do not go together."""
    parser, commands = make_parser()
    options, unknown = parser.parse_known_args(arguments)
    if options.command is None:
        parser.refuse_unknown(unknown)
        parser.print_help(sys.stderr)
        parser.exit(2)
    command = commands[options.command]
    command.refuse_unknown(unknown)
    importlib.import_module("blobnet.files.atomic").check_working_folder()
    if getattr(options, "precision", "fp32") != "fp32" and options.command != "plan":  # It needs no device.
        _check_precision(command, options)
    if options.command == "train":
        _check_train(command, options)
    elif options.command == "bench":
        _check_bench(command, options)
    elif options.command == "predict" and options.score is not None and not options.boxes:
        command.error("--score needs --boxes")
    return options


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
    networks = textwrap.fill(", ".join(public_names("models")), 78, initial_indent="  ", subsequent_indent="  ")
    for name, (arguments, summary, epilog) in _COMMANDS.items():
        usage, description = f"blobnet {name} {arguments}".strip(), f"{summary[0].upper()}{summary[1:]}."
        epilog = epilog and epilog.replace("{networks}", networks)
        commands[name] = group.add_parser(name, usage=usage, help=summary, description=description, epilog=epilog)
    add_options(commands)
    return parser, commands


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
    if options.pretrained is not None and (options.model is None or options.init_from is not None or options.trunk):
        parser.error("--pretrained needs MODEL, and goes without --init-from and --trunk")
    if options.folds is not None:
        others = ["resume", "validation_fraction", "save_best", "plot", "checkpoint_steps", "timeout"]
        others += map(name_of, callback_rows())  # Each would hear of all folds as of one training.
        given = {name: getattr(options, name, None) for name in others}
        clash = next((name for name, value in given.items() if value or (value == 0 and value is not False)), None)
        if clash is not None:
            parser.error(f"--folds goes without --{clash.replace('_', '-')}")
    if options.warmup_epochs is not None and options.schedule == "one-cycle":
        parser.error("--warmup-epochs needs another --schedule than one-cycle, which rises by itself")
    if options.step_epochs is not None and options.schedule != "step":
        parser.error("--step-epochs needs --schedule step")
    if options.momentum is not None:
        family = importlib.import_module("blobnet.optimizers").Optimizer
        known = [name for name in option_names("optimizers", "Optimizer") if hasattr(family.named(name), "momentum")]
        if options.optimizer not in known:
            parser.error(f"--momentum needs --optimizer {any_of(known)}")
