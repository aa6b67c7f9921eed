"""Arguments and methods of Keras and PyTorch: what stands for them here, in one table, for the hints of errors."""

from __future__ import annotations

import functools
import inspect
from abc import ABCMeta
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from blobnet.errors import ArgumentError, first_few, near_matches

P = ParamSpec("P")
T = TypeVar("T")

_INPUTS = "leave it out: what comes in follows from the node before."
_ORDER = "samples come in an order that follows from seed; batches of an iterable in their own."
_AHEAD = "leave it out: batches are read ahead anyway."
_STREAM = "itertools.islice(batches, count) gives so many of them."
_PRETRAINED = "bn.models.resnet50(pretrained=...) takes a name; "
_PRETRAINED += "model.load_safetensors(path) or model.load_keras_weights(path) takes weights, bn.onnx.load a network "
_PRETRAINED += "with its weights (docs/weights.md, docs/pretrained.md)."
_MEASURED = "say it to fit: model.fit(x, y, optimizer=..., loss=..., metrics=...)."
_STEPS = "step = model.trainer(optimizer=..., loss=...); step.train(x, y); step.update()."

#: The advice for the name of another framework's argument: a hint, or the name of the same argument here.
ARGUMENTS = {
    # fit, evaluate, predict
    "class_weight": 'class_weights= takes {number or name: weight}, or "balanced".',
    "sample_weight": "sample_weights= takes a weight for each sample.",
    "validation_data": "validation= takes (x, y).",
    "validation_split": "validation=0.1 holds a tenth of the samples out.",
    "validation_steps": "validation=lambda: itertools.islice(batches(), count) gives so many of a generator function.",
    "validation_freq": "leave it out: every epoch is validated.",
    "initial_epoch": "resume=True goes on with the last training; epochs= counts from its beginning.",
    "shuffle": _ORDER,
    "steps": _STREAM,
    "workers": _AHEAD,
    "num_workers": _AHEAD,
    "use_multiprocessing": _AHEAD,
    "max_queue_size": _AHEAD,
    # callbacks
    "filepath": "path= is the file.",
    "min_delta": "minimum_change= is what counts as better.",
    "mode": "falls=True says that less is better, falls=False that more is.",
    "restore_best_weights": "restore_best= says it, and is True unless it is given.",
    "save_best_only": "callbacks.SaveBest(path) saves the best epoch.",
    "save_freq": "every= counts epochs, every_steps= steps.",
    "period": "every= counts epochs.",
    # optimizers
    "lr": "learning_rate= is a number, a schedule or a function of the step.",
    "params": "leave it out: fit knows the parameters; freeze= and rates= choose among them.",
    "betas": "beta1= and beta2= are numbers.",
    "beta_1": "beta1",
    "beta_2": "beta2",
    "eps": "epsilon",
    "rho": "alpha",
    "clipnorm": "clip_norm= is the largest norm of all gradients together.",
    "global_clipnorm": "clip_norm= is the largest norm of all gradients together.",
    # layers
    "activity_regularizer": "an optimizer has weight_decay=.",
    "axis": "units (channels) are the first axis of a sample.",
    "data_format": "units (channels) are the first axis of a sample.",
    "dilation_rate": "dilation",
    "go_backwards": "reverse",
    "hidden_size": "units",
    "in_channels": _INPUTS,
    "in_features": _INPUTS,
    "inplace": "leave it out: what may run in place does.",
    "input_dim": "Embedding has count=; elsewhere what comes in follows from the node before.",
    "kernel_initializer": "initializer",
    "kernel_regularizer": "an optimizer has weight_decay=.",
    "mask_zero": "leave it out: LSTM and GRU take the length of each sample as a second input.",
    "embedding_dim": "units",
    "num_embeddings": "count",
    "num_features": _INPUTS,
    "out_channels": "filters",
    "out_features": "units",
    "p": "rate",
    "pool_size": "kernel_size",
    "recurrent_dropout": "leave it out: Dropout before or behind the layer drops what comes in or goes out.",
    "reset_after": "leave it out: a GRU is as Keras has it with reset_after=True.",
    "stateful": "leave it out: every sample begins with zeros.",
    "strides": "stride",
    "use_bias": "bias",
    # losses
    "from_logits": "leave it out: losses take logits.",
    "ignore_index": "ignore",
    "weight": "fit(class_weights=...) weighs classes.",
    # networks
    "include_top": 'model.trunk("pool") gives nodes for a new last layer, model.with_classes(5) puts one there.',
    "num_classes": "classes",
    "pretrained": _PRETRAINED,
    "weights": _PRETRAINED,
}
#: The advice for a method that a model does not have.
METHODS = {
    "add": "layers come in a list: Sequential([first, second, ...]).",
    "compile": _MEASURED,
    "cuda": 'a device is chosen by $BLOBNET_DEVICE, or device="NVIDIA", say.',
    "eval": "leave it out: predict and evaluate run as in inference.",
    "load_state_dict": "model.set_weights(arrays) takes arrays by name, model.load_safetensors(path) those of a file.",
    "load_weights": "bn.load(path) gives the model in a file; model.load_keras_weights(path) takes a file of Keras.",
    "parameters": "model.weights has all arrays by name; fit trains them.",
    "save_weights": "model.save(path) writes the model, model.save_keras_weights(path) weights for Keras.",
    "state_dict": "model.weights has all arrays by name.",
    "to": 'a device is chosen by $BLOBNET_DEVICE, or device="NVIDIA", say.',
    "train": "model.fit(x, y) trains; there is nothing to switch.",
    "train_on_batch": _STEPS,
    "train_step": _STEPS,
    "zero_grad": _STEPS,
}


def explained(function: Callable[P, T]) -> Callable[P, T]:
    """A function that says what it takes instead, where it is called with arguments that it does not have."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return function(*arguments, **named)
        except TypeError as error:
            _explain(error, function, arguments, named)
            raise

    return call


class Explained(ABCMeta):
    """The class of classes that do so when they are called; all else is as of ABCMeta."""

    if not TYPE_CHECKING:  # A checker knows better what each class takes.

        def __call__(cls, *arguments: Any, **named: Any) -> Any:
            try:
                return super().__call__(*arguments, **named)
            except TypeError as error:
                _explain(error, cls, arguments, named)
                raise

        @property
        def __signature__(cls) -> inspect.Signature:
            """The signature of the class, for ``help``; without this it would be that of the method above."""
            own = inspect.signature(cls.__init__)
            return own.replace(parameters=list(own.parameters.values())[1:], return_annotation=inspect.Signature.empty)


def explain_method(kind: str, name: str) -> AttributeError:
    """The error for a method or attribute that there is not."""
    hint = f" Hint: {METHODS[name]}" if name in METHODS else ""
    return AttributeError(f"{kind!r} object has no attribute {name!r}.{hint}")


def explain_argument(subject: str, name: str, value: object, known: list[str]) -> ArgumentError:
    """The error for an argument that there is not."""
    found = ARGUMENTS.get(name, "")
    hint = f"did you mean {found!r}?" if found.isidentifier() else found or near_matches(name, known)
    received = f"{name}={repr(value) if isinstance(value, str | int | float) else type(value).__name__}"
    return ArgumentError(subject, "there is no such argument", hint=hint, received=received)


def _explain(error: TypeError, function: Callable[..., Any], arguments: Any, named: Mapping[str, Any]) -> None:
    """Raises ArgumentError where ``function`` did not begin, since the arguments are not its own."""
    if error.__traceback__ is None or error.__traceback__.tb_next is not None:
        return
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **named)
    except TypeError as cause:
        subject = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
        known = {name: item.kind for name, item in signature.parameters.items() if name != "self"}
        unknown = next((name for name in named if name not in known), None)
        if unknown is None:
            by_name = [name for name, kind in known.items() if kind is inspect.Parameter.KEYWORD_ONLY]
            hint = f"it takes {', '.join(name for name in known if name not in by_name) or 'nothing'}"
            hint += f"; by name {first_few(by_name, 6)}." if by_name else "."
            raise ArgumentError(subject, str(cause), hint=hint) from error
        raise explain_argument(subject, unknown, named[unknown], list(known)) from error
