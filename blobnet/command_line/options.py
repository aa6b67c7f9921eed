"""The options of all commands, as tables from which the parser and its help are made."""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from blobnet.command_line import option_types
from blobnet.device.tuning import LEVELS
from blobnet.support.kinds import folder_of, option_names, squeezed
from blobnet.support.picture_kinds import PICTURE_KINDS

#: What becomes of the value that stands so in a table; of others nothing: they stay text.
_TYPES = {
    **dict.fromkeys(("N", "K", "S"), option_types.count),
    **dict.fromkeys(("X", "MS"), option_types.number),
    **dict.fromkeys(("FILE", "FILE.h5", "FILE.html", "DIR", "IN", "OUT"), Path),
    "F": option_types.fraction,
    "HxW": option_types.image_size,
    "C,H,W": option_types.shape,
    "SIZE": option_types.memory,
}

_MODEL = """one of blobnet's networks (lenet5, resnet50, ...: 'blobnet train --help' lists them); or
  path/to/file.py:function, a function of yours that returns a Model"""
_DATA = """\
--dataset DATA  digits, mnist or fashion-mnist; or the path of a .npz or HDF5 file with x and y, of a folder with x.npy
  and y.npy, of a folder that holds a folder of pictures for each class, or the folders images and masks, of a CSV
  file with the columns path and label: a class, several labels (cat|red), or a number; or of boxes: COCO's .json, or
  a folder of YOLO or Pascal VOC; or of tar archives (WebDataset), Parquet files or LMDB: 'train-{{000..146}}.tar', in
  quotes; or hf:OWNER/NAME, a data set of the Hugging Face hub"""
_READING = """\
--data-folder DIR  where the files of mnist or fashion-mnist are looked for first
--image-size HxW  resize pictures to this height and width, 64x48 say, or 64 for both (default: those of a saved model)
--workers N  processes that decode pictures; 0 does without (default: one for each core, for many pictures)
--skip-unreadable  leave out pictures that cannot be decoded, and say so
--labels KIND  what the labels of pictures are: classes, several (any number of labels a picture) or numbers (default:
  what they look like, or what a saved model was trained for)
--columns LIST  the columns of a CSV file that hold labels: age,height (default: label, else all but path and split);
  of archives the ends of names, or the keys in .json; of Parquet also that of pictures: image,label
--shuffle-buffer N  samples of archives, or Parquet, that are shuffled among themselves (default: 4096)"""
_METRICS = """\
--metrics LIST  functions of blobnet.metrics to measure as well: auc,f1 say (default: average_precision and f1 for
  several labels of pictures, mae and r2 for numbers)"""
_AUGMENT = """\
--augment LIST  change samples at random, in the order given, by the classes of blobnet.augment or their short names:
  {augmentations}; with a number, its first argument: crop=2,flip,rotate=10 say (default: nothing)"""
_TTA = """\
--tta LIST  average the answers over views of each picture: flip (left for right), vflip (top for bottom), shift=1 (and
  moved to each corner by so many cells); flip,shift=1 say"""
_FREEZE = """\
--freeze NAME  do not train this layer or parameter; also a pattern, 'stage1*' or '*/bias' say; may come several times
--freeze-until LAYER  do not train this layer, and none that its values depend on"""
_BATCH_SIZE = """\
--batch-size N  samples a step (default: 64)"""
_SHAPE = """\
--input-shape C,H,W  of a sample (default: the model's own, or 1,28,28)
--classes N  default: the model's own, or 10"""
_SIZE = """\
--size N  build the network for samples of NxN"""
_MEMORY = """\
--align N  round the rows and the planes of blobs up to multiples of N numbers (default: 1)
--storage NAME  what is kept between layers, where --precision does not say it: float32; in half the memory bfloat16 or
  float16, which are precision bf16 and fp16 (default: float32)"""
_RECOMPUTE = """\
--recompute  compute blobs again in the backward pass, where that takes little, in place of keeping them"""
_PRETRAINED = """\
--pretrained NAME  for a network in place of the file, resnet50 say: its weights, as for train"""
_DEVICE = """\
--device DEVICE  a device: part of its name, or its address (see 'blobnet devices'); default: $BLOBNET_DEVICE, else the
  best"""
_PRECISION = """\
--precision NAME  fp32; tf32 for convolutions on the tensor cores of NVIDIA GPUs; bf16 or fp16, which keep bfloat16
  or float16 between layers, in half the memory (default: fp32)"""
#: Kinds of pictures that can be drawn.
_DRAWN = ".png, .pdf or .svg; needs matplotlib"

#: The options of each command. A line has a name, what stands for the value (nothing: a flag) and, after two spaces,
#: the help; it goes on in lines that are indented. A line without help begins a group.
_TABLES = {
    "train": f"""
model MODEL  {_MODEL}; with --init-from, without it that of the file
data:
{_DATA}
{_READING}
--validation-fraction F  the part of the training samples that is held out for validation (default: 0.1 if something is
  chosen by it or there is no test split, else none)
--folds N  cross-validation: for each of so many parts of the training samples, train on the others and measure on it;
  a file for each, and the mean of all
training:
--epochs N  passes over the data, counted from the beginning (default: 5; with --resume as many as were planned)
{_BATCH_SIZE}
--optimizer NAME  {{optimizers}} (default: adam)
--learning-rate X  default: 0.002, 0.01 for sgd, 0.0003 for lion, 0.02 for muon; the highest of a schedule
--momentum X  of optimizers that have one, as sgd (default: 0)
--weight-decay X  default: 0, and 0.01 for adamw and lamb
--clip-norm X  the largest norm of all gradients together
--clip-value X  the largest size of a single gradient
--decays NAME  what weight decay applies to: weights (no biases, norms or scales) or all (default: weights)
--layer-decay X  the learning rate of a layer is times this for each layer behind it (default: 1)
--lookahead N  every N steps, go back to the middle of the way since the last time
--sam X  sharpness-aware minimisation: take gradients twice a step, and the second time so far uphill: 0.05 say
--sam-adaptive  uphill in proportion to the weights, with a larger --sam: 2 say
--loss NAME  {{losses}}; for several outputs mask=dice,speed=huber (default: cross-entropy for classes,
  mean-squared-error for targets)
--loss-weights LIST  of several outputs, what their losses are multiplied by: mask=1,speed=0.5 (default: 1)
--label-smoothing X  of the cross-entropies and focal (default: 0)
{_METRICS}
--class-weights balanced  balanced: all classes weigh the same, however many samples they have
--accumulate N  batches of a step, whose gradients are added up (default: 1)
--fit-memory  where the device has no memory for a batch, compute blobs again, as --recompute does, and if that is not
  enough, compute the batch in parts, whose gradients are added up
{_RECOMPUTE}
--shards N  parts of a batch, added in a fixed order: up to so many ranks give the same bits (default: 1,
  under mpiexec 8)
--reduction NAME  how ranks add: ordered, with the same bits for any number of them, or fast, as MPI likes (default:
  ordered)
--sync-batch-norm  have batch norms normalise a batch over all its shards, and not each by itself
--batch-size-per-device N  samples a step of each rank, in place of --batch-size, which is that of all
--average X  keep a moving average of the weights, of which a step keeps this part: 0.999 say (default: none)
{_AUGMENT}
--sizes LIST  sizes of pictures that grow from epoch to epoch, up to the model's: 128@0,160@10,224@20 takes 160x160
  after ten epochs (default: one size)
--schedule NAME  of the learning rate: {{schedules}}; step is x0.1 every few epochs, cosine (the default) goes down to 0
  over --epochs
--step-epochs N  epochs of a step (default: a third of --epochs)
--warmup-epochs X  epochs in which the rate first rises (default: 0)
--seed N  of weights, order, augmentation and dropout (default: 0)
weights of another training:
--teacher FILE.h5  distillation: learn the answers of this model besides the labels
--temperature X  what the logits of both models are divided by for that (default: 4)
--teacher-weight X  of the distance from these answers, which is added to the loss (default: 1)
--trunk NAME  the network that centernet stands on (resnet18)
--init-from FILE.h5  start from the weights of this file (or .onnx), with a new last layer; with MODEL, where layers
  have the same names
--pretrained NAME  start from weights of the Hugging Face hub, hf:OWNER/NAME[@REVISION] (extra hub), or of a
  .safetensors file, with their size and normalisation, and a new last layer
--classes N  outputs of the model (default: the classes of the data)
{_FREEZE}
files:
--output FILE.h5  the model file (default: the model's name and .h5)
--resume  go on with the training in the output file
--overwrite  replace an output file that is there
--plot FILE  draw the training curves ({_DRAWN})
--checkpoint-steps N  also write the output file every N steps in the middle of an epoch, and at Ctrl-C or SIGTERM
  (default: after every epoch alone)
--timeout N  end with an error where no step, or validation, ends for so many seconds, since a device or a disk hangs
  (default: wait for ever)
callbacks:
--save-best  keep the epoch with the lowest validation loss, not the last
{{callbacks}}
device:
{_DEVICE}
{_PRECISION}
--check  check every launch for writes where it must not write (slow)
--verify  first check the ways to compute that were never used on this device and driver, as 'blobnet doctor' does
""",
    "evaluate": f"""
file FILE.h5  a model file; or .onnx
{_PRETRAINED}
{_DATA}
{_READING}
{_BATCH_SIZE}
{_TTA}
{_METRICS}
--report  print precision, recall, F1, IoU and AUC of each class or label, or the errors of each number
--matrix FILE  draw the confusion matrix ({_DRAWN}; classes only)
--mistakes FILE  draw the worst mistakes, with the truth and what was said ({_DRAWN}), or list all of them, the worst
  first (.csv); may come twice
{_DEVICE}
{_PRECISION}
""",
    "report": f"""
file FILE.h5  a model file; or .onnx
{_PRETRAINED}
--output FILE.html  the page (default: the model's name and .html)
--title TEXT  of the page (default: the model's name)
--license TEXT  of the model (default: what the hub says of the weights that its training began with)
--count N  mistakes and samples that are shown (default: 12)
--no-timing  do not time a step
data:
{_DATA} (default: a page without measurements)
{_READING}
{_METRICS}
{_AUGMENT.replace("(default: nothing)", "(default: those of the training)")}
{_BATCH_SIZE.replace("default: 64", "default: that of the training")}
device:
{_DEVICE}
""",
    "predict": f"""
file FILE.h5  a model file; or .onnx
images IMAGE  a picture ({PICTURE_KINDS}; needs Pillow), a .npy array, a folder of these, or a .npz, HDF5 or .npy file
  of samples (x_test, else x)
{_PRETRAINED}
--top K  show the K best classes of each (default: 1)
--csv FILE  write all probabilities, a line a picture, instead of printing
--json FILE  write all probabilities as JSON instead of printing
--npz FILE  write the model's outputs, whatever their shape, as arrays of their names
--masks DIR  for a model that gives a class for each position: write PNG files whose palette's indices are the classes,
  in the pictures' sizes
--boxes DIR  for a model that gives boxes (centernet): draw them into copies of the pictures, and list them in
  boxes.json there, in pixels
--score X  the least score of a box (default: 0.3)
{_TTA}
--explain DIR  draw into copies of the pictures where the answer comes from: Grad-CAM on the left, saliency on the
  right; of several outputs, or numbers, each in a folder of its own
{_DEVICE}
{_PRECISION}
""",
    "show": f"""
what WHAT  a data set, as --dataset of train takes it; or a model file, or one of the models of train as it starts
--plot FILE  the picture (.png, .pdf or .svg; default: WHAT's name and -samples.png or -layers.png, here)
--count N  samples to draw (default: 40), or to run the model on (default: 64)
--seed N  of the samples' order, of augmentation and of dropout (default: 0)
for a data set:
{_AUGMENT}
for a model:
--dataset DATA  run the model on samples of this data set, and back
data:
{_READING}
device:
{_DEVICE}
""",
    "sweep": """
words COMMAND  of blobnet train, with ranges; it comes last
--study FILE  the data base of Optuna (SQLite), which is made where there is none
--name NAME  of the study in it (default: sweep)
--trials N  of the study in all (default: 20)
""",
    "lr-find": f"""
model MODEL  {_MODEL}; or a model file
data:
{_DATA}
{_READING}
search:
{_BATCH_SIZE}
--steps N  of the search, whose rates grow from 1e-7 to 10 unless the loss explodes before (default: 100)
--optimizer NAME  {{optimizers}} (default: adam)
--seed N  of weights and order (default: 0)
--plot FILE  draw the losses and the suggestion ({_DRAWN})
{_DEVICE}
""",
    "speedrun": f"""
data:
{_DATA}
{_READING}
training:
--large  a network of 128, 384 and 512 units, for 60 epochs, with erased rectangles; not with --against
--epochs N  passes over the data (default: 9; 60 with --large)
--seeds N  how many trainings (default: 5)
--seed N  of the first one (default: 0)
--against torch  the same in PyTorch too, in turn, in a checkout
{_DEVICE}
{_PRECISION}
""",
    "devices": """
--facts  show what is known of each, and where it comes from
""",
    "doctor": """
--device DEVICE  check this device alone, not all: part of its name, or its address
--thorough  check on more layers, and all that was tuned: minutes
--json  print JSON and nothing else
--seed N  of shapes, memory and data (default: 0)
--limit S  seconds for a check (default: 60)
--clear  check nothing: let plans use again what earlier checks denied them
""",
    "plan": f"""
model MODEL  {_MODEL}; or a model file
{_BATCH_SIZE}
{_SHAPE}
--inference  plan for prediction instead of training
{_FREEZE}
--optimizer NAME  whose state is counted: {{optimizers}} (default: adam)
{_MEMORY}
{_RECOMPUTE}
{_PRECISION}
--memory SIZE  find the largest batch for this memory, 8GiB say, not a device's
--plot FILE  draw what holds memory, launch by launch ({_DRAWN})
{_DEVICE}
many devices:
--devices N  plan a training on so many: what each needs and sends
--devices-per-host N  so many of them (default: all)
--shards N  of a batch (default: 8, or --devices)
--step-time MS  of one device with its part of the batch, as 'blobnet bench model' measures it, for the efficiency
""",
    "bench": f"""
what WHAT  model; in a checkout also conv, layer or fit
subject SUBJECT  a network, a suite or a shape (default for layers: resnet50)
--batch-size N  samples (default: 8 on a CPU, 64 on a GPU)
{_SIZE}
--repeats N  of which the median counts (default: 7)
{_MEMORY}
--direction NAME  forward, backward-data or backward-weights; backward for layers without weights (default: all)
--against torch  measure PyTorch as well, in turn (in a checkout; it must be installed)
--json  print JSON, in ms, and nothing else
--plot FILE  draw the roofline, of a model also the time of each kernel ({_DRAWN})
{_DEVICE}
{_PRECISION}
for bench model:
--classes N  default: the model's own
--launches  list every launch, not every kernel
for bench model and bench fit:
{_RECOMPUTE}
for bench fit:
--augment LIST  measure that too
""",
    "tune": f"""
model MODEL  {_MODEL}; a model file; or a suite or shape of 'blobnet bench'
{_BATCH_SIZE}
{_SIZE}
--inference  tune for prediction alone
--level NAME  none (show what is known), fast (the few best by predicted cost) or wide (default: fast)
--again  measure also what is known
--output DIR  put the winners also into a file for this device in DIR, in the form in which tunings ship
{_DEVICE}
{_PRECISION}
""",
    "compile": f"""
text TEXT  a contraction, or a file that holds it
--shapes NAME=AxBxC  of the inputs
--sizes NAME=N  of names in the text
--gradients NAME  compile the gradients of these inputs instead; of all without
--schedule TEXT  for the first table, instead of the one that is chosen
--show  print tables and OpenCL C too
--model NAME  print the tables and the tiles of a published model instead, in a checkout: seed
{_DEVICE}
""",
    "convert": f"""
input IN  a .h5, .onnx, .weights.h5 or .safetensors file
output OUT  the file to write, of any of these kinds
--model MODEL  the network of weights: {_MODEL}; or a model file
{_SHAPE}
--boxes N  of a model for boxes (centernet), have a .onnx file give the best N of them
--overwrite  replace an output file that is there
""",
    "inspect": """
file FILE.h5  a model file
""",
}


def _choice(*names: str) -> dict[str, Any]:
    """The first of these names unless another one is given."""
    return {"choices": names, "default": names[0]}


_MANY: dict[str, Any] = {"nargs": "+", "default": []}
#: What an option is besides, in every command that has it, or in one of them.
_MORE: dict[str, Mapping[str, Any]] = {
    "align": {"default": 1},
    "against": {"choices": ("torch",)},
    "batch_size": {"default": 64},
    "class_weights": {"choices": ("balanced",)},
    "columns": {"type": option_types.names},
    "labels": {"choices": ("classes", "several", "numbers")},
    "freeze": {"action": "append"},
    "loss": {"type": option_types.loss},
    "metrics": {"type": option_types.names},
    "loss_weights": {"type": option_types.numbers_by_name},
    "precision": _choice("fp32", "tf32", "bf16", "fp16"),
    "seed": {"type": option_types.seed, "default": 0},
    "storage": _choice("float32", "float16", "bfloat16"),
    "workers": {"type": option_types.count_or_none},
    "train model": {"nargs": "?"},
    "train dataset": {"required": True},
    "train batch_size": {"default": None},
    "train seed": {"default": None},
    "fit_memory": {"default": None},
    "train recompute": {"default": None},
    "sam_adaptive": {"default": None},
    "sync_batch_norm": {"default": None},
    "reduction": _choice("ordered", "fast"),
    "evaluate dataset": {"required": True},
    "words": {"nargs": argparse.REMAINDER},
    "study": {"required": True},
    "name": {"default": "sweep"},
    "trials": {"default": 20},
    "lr-find dataset": {"required": True},
    "lr-find steps": {"default": 100},
    "speedrun dataset": {"default": "fashion-mnist"},
    "speedrun seeds": {"default": 5},
    "mistakes": {"action": "append", "default": []},
    "images": {"nargs": "+"},
    "top": {"default": 1},
    "score": {"type": option_types.share},
    "limit": {"default": 60},
    "bench what": {"choices": ("conv", "layer", "model", "fit")},
    "compile model": {"choices": ("seed",)},
    "subject": {"nargs": "?"},
    "bench batch_size": {"default": None},
    "report batch_size": {"default": None},
    "report count": {"default": 12},
    "live": {"nargs": "?", "const": 8787, "type": option_types.port},
    "repeats": {"default": 7},
    "direction": {
        "type": lambda text: text.replace("-", " "),
        "choices": ("forward", "backward", "backward data", "backward weights"),
    },
    "level": {"choices": LEVELS, "default": "fast"},
    "shapes": {"type": option_types.named_sizes, **_MANY},
    "compile sizes": {"type": option_types.named_size, **_MANY},
    "train sizes": {"type": option_types.sizes_of_epochs},
    "gradients": {"nargs": "*"},
}
#: Options of ``blobnet train`` of which one alone may be given.
_EITHER = ("resume", "overwrite")


def add_options(commands: Mapping[str, argparse.ArgumentParser]) -> None:
    """Adds the options of all commands to their parsers."""
    names: dict[str, list[str]] = {
        "optimizers": option_names("optimizers", "Optimizer"),
        "schedules": option_names("schedules", "Schedule", option_types.NOT_OPTIONS),
        "losses": option_names("losses", "Loss", option_types.NOT_OPTIONS),
        "augmentations": option_names("augment", "Augmentation"),
    }
    texts = {"callbacks": "\n".join(callback_rows()), **{kind: any_of(some) for kind, some in names.items()}}
    optimizers, schedules = _kind(names["optimizers"]), _kind(names["schedules"])
    more = {**_MORE, "optimizer": optimizers, "train schedule": schedules}
    for command, parser in commands.items():
        _add_table(command, parser, _TABLES[command].format(**texts), more)


def _add_table(
    command: str, parser: argparse.ArgumentParser, table: str, more: Mapping[str, Mapping[str, Any]]
) -> None:
    group: argparse._ActionsContainer = parser
    either: argparse._ActionsContainer | None = None
    for line in re.split(r"\n(?! )", table.strip()):
        words, _, text = line.partition("  ")
        if not text:
            group = parser.add_argument_group(words.rstrip(":"))
            continue
        option, _, value = words.partition(" ")
        name = name_of(words)
        settings: dict[str, Any] = {"metavar": value, "type": _TYPES.get(value)} if value else {"action": "store_true"}
        settings |= {**more.get(name, {}), **more.get(f"{command} {name}", {})}
        owner = group
        if command == "train" and name in _EITHER:
            owner = either = either or group.add_mutually_exclusive_group()
        owner.add_argument(option, help=" ".join(text.split()), **settings)


def name_of(row: str) -> str:
    """Return the name that a row's value has among those of the command line: ``early_stopping``."""
    return row.partition(" ")[0].strip("-").replace("-", "_")


def callback_rows() -> list[str]:
    """Return the rows of callbacks that have an option, without importing any."""
    loaded = sys.modules.get("blobnet.callbacks")
    if loaded is not None:  # And with them those of a user's own that are defined.
        return [kind.option[1] for kind in loaded.Callback.with_option]
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder_of("callbacks").glob("*.py"))]
    found = [re.search(r"^    option = (\(.*?\))$", text, re.MULTILINE | re.DOTALL) for text in texts]
    return [ast.literal_eval(match[1])[1] for match in found if match]


def _kind(known: list[str]) -> dict[str, Any]:
    """An option that is the name of a class, in any spelling."""
    return {"choices": known, "type": partial(_spelled_as, {squeezed(name): name for name in known})}


def _spelled_as(kinds: Mapping[str, str], text: str) -> str:
    return kinds.get(squeezed(text), text)


def any_of(names: Sequence[str]) -> str:
    """Return ``a, b or c``."""
    return f"{', '.join(names[:-1])} or {names[-1]}"
