"""The settings of a training: one object, from the keywords of ``fit`` to the file that a training is resumed from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from blobnet import optimizers
from blobnet.augment import Augmentation
from blobnet.augment.epoch_rows import check_mixed, from_descriptions
from blobnet.augment.words import augmentations_of
from blobnet.errors import OptionError
from blobnet.files.checkpoint import TrainingState
from blobnet.losses.distillation import Distilled
from blobnet.memory.blob import FloatArray
from blobnet.network.ends import Losses, heads_of, to_dict
from blobnet.network.graph import Graph
from blobnet.network.patterns import frozen_parameters, recorded_frozen
from blobnet.optimizers import Optimizer
from blobnet.support.checks import check_count, check_number, is_int
from blobnet.training.arguments import loss_weights_for, losses_for, optimizer_of
from blobnet.training.teacher import Teacher

#: How ranks add gradients: along the tree of shards, or as their transport likes, whose bits depend on their number.
ORDERED, FAST = "ordered", "fast"
#: The name of an optimizer's learning rate, which a resumed training may change, and nothing else of the optimizer.
RATE = "learning_rate"

#: Where a file has a setting: among its settings, always, if it is not the default, or if the learning rate depends on
#: it; or not there.
_ALWAYS, _CHANGED, _SCHEDULED, _ELSEWHERE = "always", "if changed", "if scheduled", "elsewhere"


class Augmented(NamedTuple):
    """The random changes of samples, and the name of the input whose samples change; None if none do."""

    input: str | None = None
    changes: tuple[Augmentation, ...] = ()


class Size(NamedTuple):
    """The size of pictures from an epoch on, counted from 0."""

    epoch: int
    height: int
    width: int


class Interrupted(NamedTuple):
    """A training to go on with: what its file says, and the losses of its model as ``fit`` takes them, if it knows."""

    state: TrainingState
    loss: Any


def _as_it_is(graph: Graph, name: str, held: Any) -> dict[str, Any]:
    return {name: held}


def _in_settings(graph: Graph, name: str, said: Interrupted) -> Any:
    return said.state.settings.get(name)


class Option(NamedTuple):
    """The facts of a setting besides its type and default.

    Attributes:
        check: makes of what ``fit`` takes what the settings hold: (graph, name, given); OptionError if it is wrong.
        describe: makes of that plain data by name, to compare and for files: (graph, name, held).
        recall: gives what an interrupted training had, as ``fit`` takes it: (graph, name, said).
        in_files: where a file has it.
        unsaid_is_default: whether a file that does not say it means the default.
        may_change: the names in ``describe`` that may be others where a training is resumed.
        called: what errors call it, where that is not its name.
    """

    check: Callable[[Graph, str, Any], Any]
    describe: Callable[[Graph, str, Any], Mapping[str, Any]] = _as_it_is
    recall: Callable[[Graph, str, Interrupted], Any] = _in_settings
    in_files: str = _CHANGED
    unsaid_is_default: bool = True
    may_change: Collection[str] = ()
    called: str = ""


def _rules(check: Callable[[Graph, str, Any], Any], **more: Any) -> dict[str, Option]:
    """Metadata of a field: see Option."""
    return {"option": Option(check, **more)}


class Described(NamedTuple):
    """A setting, or a part of it, as plain data: its name, its value, and what a file means that does not say it."""

    name: str
    value: Any
    unsaid: Any
    option: Option


# -- what each setting is ----------------------------------------------------------------------------------------------


def _count(graph: Graph, name: str, given: Any) -> int:
    return check_count("fit", name, given)


def _count_or_none(graph: Graph, name: str, given: Any) -> int | None:
    return None if given is None else check_count("fit", name, given)


def _flag(graph: Graph, name: str, given: Any) -> bool:
    return bool(given)


def _unchecked(graph: Graph, name: str, given: Any) -> Any:
    """Check nothing: the device, or who knows the labels, does."""
    return given


def check_seed(subject: str, seed: Any) -> int:
    """Return a seed as Python's int; OptionError unless it is one."""
    if not is_int(seed, 0) or seed >= 2**63:
        raise OptionError(subject, "seed must be an int from 0 to below 2^63", seed=repr(seed))
    return int(seed)


def _average(graph: Graph, name: str, given: Any) -> Any:
    if given is not None:
        check_number("fit", name, given, least=0, below=1)
    return given


def _reduction(graph: Graph, name: str, given: Any) -> str:
    if given not in (ORDERED, FAST):
        raise OptionError(name, f"it must be {ORDERED} or {FAST}", received=given)
    return str(given)


def described_optimizer(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's description with its learning rate apart."""
    config = dict(description["config"])
    return {RATE: config.pop(RATE, None), "optimizer": {"kind": description["kind"], "config": config}}


def _above_zero(graph: Graph, name: str, given: Any) -> Any:
    check_number("fit", name, given, above=0)
    return given


def _recall_teacher(graph: Graph, name: str, said: Interrupted) -> None:
    if _in_settings(graph, name, said) is not None:
        rule = "the teacher of the interrupted training must be given again, since files do not hold its weights"
        raise OptionError("resume", rule, hint="fit(teacher=bn.load(FILE)), or --teacher FILE.")


def _augmented(graph: Graph, name: str, given: Any) -> Augmented:
    names = list(graph.inputs)
    if given and not isinstance(given, Mapping) and len(names) > 1:
        hint = f"give augment={{{names[0]!r}: ...}}."
        raise OptionError(name, "with several inputs, it must say whose samples change", hint=hint)
    items = list(given.items()) if isinstance(given, Mapping) else [(names[0], given)] if given else []
    if len(items) > 1 or any(own not in names for own, _ in items):
        rule = "the samples of one input may change, which goes by its name"
        raise OptionError(name, rule, received=", ".join(str(own) for own, _ in items), inputs=", ".join(names))
    for own, changes in items:
        found = augmentations_of(changes or ())
        check_mixed(found, names)
        if found:
            return Augmented(own, found)
    return Augmented()


def _describe_augmented(graph: Graph, name: str, held: Augmented) -> dict[str, Any]:
    described: dict[str, Any] = {name: [each.description() for each in held.changes]}
    return described | ({"augmented": held.input} if held.changes and len(graph.entries) > 1 else {})


def _recall_augmented(graph: Graph, name: str, said: Interrupted) -> dict[str, Any] | None:
    settings = said.state.settings
    changes = from_descriptions(settings.get(name, []), "resume")
    return {settings.get("augmented", next(iter(graph.inputs))): changes} if changes else None


def _recall_epochs(graph: Graph, name: str, said: Interrupted) -> int:
    state = said.state
    if name not in state.settings and not state.place:
        rule = "they must be given, since a training whose learning rate does not depend on them does not say them"
        raise OptionError(name, rule, finished=state.epoch, hint=f"epochs={state.epoch + 1} is one more.")
    epochs: int = state.settings.get(name, state.epoch + 1)  # The one that is under way.
    return epochs


def _recall_loss_weights(graph: Graph, name: str, said: Interrupted) -> Any:
    weights = said.state.settings.get(name)
    return weights[0] if len(graph.outputs) == 1 and isinstance(weights, list) and len(weights) == 1 else weights


def _sizes(graph: Graph, name: str, given: Any) -> tuple[Size, ...]:
    hint = f"{name}={{0: 128, 10: 160, 20: 224}} begins with pictures of 128x128, say."
    try:  # Files have lists.
        pairs = given.items() if isinstance(given, Mapping) else [(epoch, own) for epoch, *own in given]
        found = tuple(sorted(Size(epoch, *((own, own) if is_int(own, 1) else own)) for epoch, own in pairs))
    except (TypeError, ValueError) as error:
        rule = "it must have the size of pictures, N or (height, width), for the epochs from which it is another one"
        raise OptionError(name, rule, received=given, hint=hint) from error
    if not all(is_int(number, least) for size in found for number, least in zip(size, (0, 1, 1), strict=True)):
        raise OptionError(name, "epochs are counted from 0, and sizes from 1", received=given, hint=hint)
    found = tuple(Size(*map(int, size)) for size in found)
    for _, *size in found:
        graph.of_size(*size)
    own = graph.input.shape.sizes
    if not found or found[0].epoch or found[-1][1:] != own:
        rule = "the first size must be that from epoch 0 on, and the last one that of the model"
        raise OptionError(name, rule, received=given, model="x".join(map(str, own)), hint=hint)
    return found


def _describe_class_weights(graph: Graph, name: str, held: Sequence[FloatArray | None] | None) -> dict[str, Any]:
    each = held or (None,) * len(graph.outputs)
    return {name: to_dict(graph.outputs, [None if own is None else [float(weight) for weight in own] for own in each])}


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The settings of a training: each keyword of :meth:`blobnet.model.Model.fit` that a training is resumed with.

    There they are explained; here stand their defaults and their rules. What is held is checked, and belongs to one
    graph.

    Attributes:
        loss: that of each output, in their order.
        loss_weights: of each output; None is 1 for all.
        freeze: the names of the parameters that are not trained.
        class_weights: for each output a number for each class, or None; None is 1 for all. What ``fit`` was given until
            the labels are known.
        sync_batch_norm: whether it is asked for, and makes a difference.
        augment: how the samples change of the input of that name; empty if none do.
        teacher: the network whose answers are learned besides the labels.
        sizes: of pictures, which change between epochs; none where they stay as they are.
    """

    epochs: int = field(
        default=1,
        metadata=_rules(
            _count, recall=_recall_epochs, in_files=_SCHEDULED, unsaid_is_default=False, may_change=["epochs"]
        ),
    )
    batch_size: int = field(default=128, metadata=_rules(_count, in_files=_ALWAYS, unsaid_is_default=False))
    optimizer: Optimizer = field(
        default=optimizers.Adam(),
        metadata=_rules(
            lambda graph, name, given: optimizer_of(given),
            describe=lambda graph, name, held: described_optimizer(held.description()),
            recall=lambda graph, name, said: Optimizer.from_description(said.state.optimizer, "resume"),
            in_files=_ELSEWHERE,
            may_change=[RATE],
        ),
    )
    loss: Losses = field(
        default=None,
        metadata=_rules(
            lambda graph, name, given: losses_for(graph, given),
            describe=lambda graph, name, held: {name: held and to_dict(graph.outputs, held)},
            recall=lambda graph, name, said: said.loss,
            in_files=_ELSEWHERE,
            unsaid_is_default=False,
        ),
    )
    loss_weights: tuple[float, ...] | None = field(
        default=None,
        metadata=_rules(
            lambda graph, name, given: loss_weights_for(graph, given),
            describe=lambda graph, name, held: {name: list(held or loss_weights_for(graph, None))},
            recall=_recall_loss_weights,
        ),
    )
    freeze: frozenset[str] = field(
        default=frozenset(),
        metadata=_rules(
            lambda graph, name, given: given if isinstance(given, frozenset) else frozen_parameters(graph, given),
            describe=lambda graph, name, held: {"frozen": sorted(held)},
            recall=lambda graph, name, said: recorded_frozen(graph, said.state.settings.get("frozen", [])),
            in_files=_ALWAYS,
            called="set of frozen parameters",
        ),
    )
    class_weights: Any = field(
        default=None, metadata=_rules(_unchecked, describe=_describe_class_weights, in_files=_ALWAYS)
    )
    steps_per_epoch: int | None = field(default=None, metadata=_rules(_count_or_none, may_change=["steps_per_epoch"]))
    accumulate: int = field(default=1, metadata=_rules(_count, in_files=_ALWAYS))
    shards: int = field(default=1, metadata=_rules(_count, called="number of shards"))
    reduction: str = field(default=ORDERED, metadata=_rules(_reduction, may_change=["reduction"]))
    sync_batch_norm: bool = field(default=False, metadata=_rules(_flag, called="choice of sync_batch_norm"))
    average: float | None = field(default=None, metadata=_rules(_average, in_files=_ALWAYS))
    augment: Augmented = field(
        default=Augmented(),
        metadata=_rules(
            _augmented,
            describe=_describe_augmented,
            recall=_recall_augmented,
            in_files=_ALWAYS,
            called="augmentation",
        ),
    )
    teacher: Teacher | None = field(
        default=None,
        metadata=_rules(
            lambda graph, name, given: None if given is None else Teacher.of(given),
            describe=lambda graph, name, held: {name: held and held.digest},
            recall=_recall_teacher,
        ),
    )
    temperature: float = field(default=4.0, metadata=_rules(_above_zero))
    teacher_weight: float = field(default=1.0, metadata=_rules(_above_zero))
    sizes: tuple[Size, ...] = field(
        default=(),
        metadata=_rules(_sizes, describe=lambda graph, name, held: {name: list(map(list, held))}),
    )
    fit_memory: bool = field(
        default=False, metadata=_rules(_flag, describe=lambda graph, name, held: {}, in_files=_ELSEWHERE)
    )
    recompute: bool = field(
        default=False, metadata=_rules(_flag, describe=lambda graph, name, held: {}, in_files=_ELSEWHERE)
    )
    seed: int = field(
        default=0,
        metadata=_rules(
            lambda graph, name, given: check_seed("fit", given),
            recall=lambda graph, name, said: said.state.seed,
            in_files=_ELSEWHERE,
        ),
    )
    precision: str = field(default="fp32", metadata=_rules(_unchecked, may_change=["precision"]))

    @classmethod
    def of(cls, graph: Graph, given: Mapping[str, Any], interrupted: Interrupted | None = None) -> TrainingSettings:
        """Return the settings of a training.

        Args:
            graph: the model.
            given: what ``fit`` was given, by its keywords.
            interrupted: the training that goes on, which had what is not given; None: that is the default.

        Raises:
            OptionError: one is wrong.
        """
        held = {}
        for name, option, default in _options():
            value = given.get(name)
            if value is None and interrupted is not None:
                value = option.recall(graph, name, interrupted)
            # Where the default is None, the graph decides.
            held[name] = default if value is None and default is not None else option.check(graph, name, value)
        settings = cls(**held)
        is_one = settings.shards == 1 or not couples_samples(graph, settings.freeze)
        return replace(settings, sync_batch_norm=False) if is_one else settings

    def check_teacher(self, model: Any) -> None:
        """Raises OptionError unless a model can learn from the teacher, or there is none."""
        if self.teacher is not None:
            self.teacher.check(model, heads_of(model.graph, self.loss))
            for _, *size in self.sizes:
                self.teacher.graph.of_size(*size)
        for name in ("temperature", "teacher_weight") if self.teacher is None else ():
            if getattr(self, name) != getattr(TrainingSettings, name):
                rule, hint = "it is for learning from a teacher", "give teacher=, or --teacher FILE."
                raise OptionError(name, rule, received=getattr(self, name), teacher=None, hint=hint)

    def graph_at(self, graph: Graph, epoch: int) -> Graph:
        """Return a model for the size that samples have in an epoch, counted from 0."""
        begun = [size for size in self.sizes if size.epoch <= epoch]
        return graph.of_size(*begun[-1][1:]) if begun else graph

    @property
    def step_loss(self) -> Losses:
        """The losses of a step's plan: those of the labels, and what a teacher adds."""
        if self.teacher is None or not isinstance(self.loss, tuple):
            return self.loss
        return tuple(Distilled(own, self.temperature, self.teacher_weight) for own in self.loss)

    def described(self, graph: Graph) -> list[Described]:
        """Return them as plain data (but for losses), to compare with others."""
        return [
            Described(key, value, unsaid.get(key, default) if option.unsaid_is_default else value, option)
            for name, option, default in _options()
            for unsaid in [option.describe(graph, name, default)]
            for key, value in option.describe(graph, name, getattr(self, name)).items()
        ]

    def for_file(self, graph: Graph) -> dict[str, Any]:
        """Return what the settings of a file say; it has the seed, the optimizer and the losses in other places."""
        wanted = {_ALWAYS: True, _SCHEDULED: self.optimizer.schedule.depends_on_epochs}
        return {
            name: value
            for name, value, unsaid, option in self.described(graph)
            if wanted.get(option.in_files, option.in_files == _CHANGED and value != unsaid)
        }


def _options() -> Iterator[tuple[str, Option, Any]]:
    """Each setting's name, what there is to know of it, and its default."""
    return ((item.name, item.metadata["option"], item.default) for item in fields(TrainingSettings))


#: The keywords of ``fit`` that are settings.
KEYWORDS = tuple(name for name, *_ in _options())
#: Those of ``trainer``, whose steps take the batches that they are given.
STEP_KEYWORDS = (
    *("optimizer", "loss", "loss_weights", "freeze", "class_weights", "average", "seed", "precision", "recompute"),
    *("teacher", "temperature", "teacher_weight", "epochs", "steps_per_epoch"),
)


def couples_samples(graph: Graph, frozen: Collection[str]) -> bool:
    """Return True if a network has layers by which samples depend on each other: batch norms that are trained."""
    coupling = [vertex for vertex in graph.vertices if vertex.layer.couples_samples]
    trained = [(vertex, spec.name) for vertex in coupling for spec in graph.parameters(vertex) if spec.trainable]
    return any(vertex.parameter(name) not in frozen for vertex, name in trained)
