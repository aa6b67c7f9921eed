"""``blobnet sweep``: trains with many settings, which Optuna chooses, and keeps the best model."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from blobnet.callbacks import OptunaPruning
from blobnet.command_line import train
from blobnet.command_line.main import make_parser, parsed
from blobnet.errors import (
    BlobnetError,
    DeviceError,
    FileError,
    OptionError,
    PlanError,
    TrainingError,
    counted,
    extra,
)
from blobnet.files.atomic import check_writable
from blobnet.parallel.world import World

#: Options that must not differ, since losses by them say nothing of one another, and those that are the sweep's own.
_SAME = ("--loss", "--label-smoothing", "--validation-fraction", "--seed")
_OURS = ("--output", "--resume", "--overwrite", "--folds")
#: Two ends, or two choices and more, perhaps with how numbers are drawn.
_ENDS = re.compile(r"(.+?)\.\.(.+?)(:log)?")
#: Seconds that processes wait for one another's entries in a study.
_PATIENCE = 60
#: Seconds between attempts to make a study.
_PAUSE = 0.2
#: What a study remembers: its command, and of a trial what went wrong.
_COMMAND, _ERROR = "command", "error"


class _Range(NamedTuple):
    """What stands for the value of an option.

    Attributes:
        option: its name, as on the command line.
        place: of its value among the words.
        texts: of two ends, or of choices.
        kind: that of numbers between the ends, int or float; None for choices.
        log: whether numbers are drawn evenly by their logarithms.
    """

    option: str
    place: int
    texts: tuple[str, ...]
    kind: Any = None
    log: bool = False

    def draw(self, trial: Any) -> str:
        """The text of a trial's value."""
        if self.kind is None:
            return str(trial.suggest_categorical(self.option, self.texts))
        suggest = trial.suggest_int if self.kind is int else trial.suggest_float
        return repr(suggest(self.option, *map(self.kind, self.texts), log=self.log))


def run(options: argparse.Namespace) -> int:
    """Trains until the study has so many trials, and prints a line for each, then the best one's command."""
    if World.current().size > 1:
        rule = "a sweep runs in one process, and not under mpiexec"
        raise OptionError("sweep", rule, hint="start several with one --study: they share its trials.")
    words = [part for word in options.words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    ranges = _ranges(words)
    for each in ranges:
        for text in each.texts:  # What one of them cannot be is said before the first trial.
            parsed(_filled(words, {other: other.texts[0] for other in ranges} | {each: text}))
    sweep = _Sweep(options.study, options.name, words, ranges)
    try:
        while sweep.count < options.trials:
            print(sweep.train(), flush=True)
    except KeyboardInterrupt as interrupt:
        print(sweep.summary(), flush=True)
        raise type(interrupt)(f"interrupted; the same command goes on with {options.study}") from None
    print(sweep.summary())
    return 0


def _ranges(words: Sequence[str]) -> list[_Range]:
    """The ranges and choices among the words of a command: what an option takes no value as.

    Raises:
        OptionError: it is no command of a training, there are none, or one of an option that must not differ.
    """
    if words[:1] != ["train"]:
        hint = "blobnet sweep --study FILE.db train lenet5 --dataset digits --learning-rate 1e-4..1e-1:log, say."
        received = words[0] if words else "nothing"
        raise OptionError("sweep", "what is swept must be a command of blobnet train", received=received, hint=hint)
    for word in words:
        if word in _OURS:
            raise OptionError(word, "a sweep goes without it: each trial is a training with a file of its own")
    parser = make_parser()[1]["train"]
    found: list[_Range] = []
    for place, word in enumerate(words[:-1], 1):
        action = parser._option_string_actions.get(word)
        text = words[place]
        if action is None or action.nargs is not None or not ("," in text or ".." in text):
            continue
        with contextlib.suppress(argparse.ArgumentError):
            parser._check_value(action, parser._get_value(action, text))
            continue
        if word in _SAME:
            raise OptionError(word, "it must be the same in all trials, so that their losses compare", received=text)
        found.append(_range_of(parser, action, place, word, text))
    if not found:
        hint = "--learning-rate 1e-4..1e-1:log, --optimizer adam,sgd, say."
        raise OptionError("sweep", "an option must have a range or choices", hint=hint)
    return found


def _range_of(parser: Any, action: argparse.Action, place: int, option: str, text: str) -> _Range:
    ends = _ENDS.fullmatch(text)
    if ends is None:
        return _Range(option, place, tuple(text.split(",")))
    try:
        low, high = (parser._get_value(action, end) for end in ends.groups()[:2])
    except argparse.ArgumentError as error:
        parser.error(str(error))
    if not isinstance(low, int | float) or isinstance(low, bool):
        raise OptionError(option, "only numbers have a range; others have choices: a,b", received=text)
    if not (low < high and math.isfinite(high - low)) or (ends[3] and low <= 0):
        rule = "a range must go up, and begin above 0 where it is drawn by logarithms"
        raise OptionError(option, rule, received=text)
    return _Range(option, place, (ends[1], ends[2]), type(low), bool(ends[3]))


def _filled(words: Sequence[str], texts: dict[_Range, str]) -> list[str]:
    """The words of a trial's command, with values for ranges."""
    found = [*words, "--save-best"]
    for each, text in texts.items():
        found[each.place] = text
    return found


def _options(words: Sequence[str]) -> argparse.Namespace:
    """The options of a trial's command; the parser has printed what is wrong with it."""
    try:
        return parsed(words)
    except SystemExit as end:
        raise OptionError("sweep", "the options of a trial must go together", command=shlex.join(words)) from end


def _study(optuna: Any, path: Path, name: str, attempts: int = 5) -> Any:
    """The study in a file; both are made where there are none.

    Raises:
        FileError: the file is something else.
    """
    try:
        waits = {"connect_args": {"timeout": _PATIENCE}}
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs=waits)
        return optuna.create_study(study_name=name, storage=storage, load_if_exists=True)
    except Exception as error:  # Those of Optuna, SQLAlchemy and Alembic have no base in common.
        if attempts > 1:  # Processes that make the same file at the same time fall over one another.
            time.sleep(_PAUSE)
            return _study(optuna, path, name, attempts - 1)
        reason = str(error).strip().partition("\n")[0]
        raise FileError(str(path), "it must be a file of Optuna's studies", reason=reason) from error


class _Sweep:
    """The trials of a study.

    Raises:
        OptionError: optuna is not installed, or the study is of another command.
        FileError: the file is no study's.
    """

    def __init__(self, path: Path, name: str, words: list[str], ranges: list[_Range]) -> None:
        try:
            import optuna
        except ImportError as error:
            raise OptionError("sweep", "it needs optuna", cause=error, hint=extra("optuna")) from error
        self._path, self._words, self._ranges = path, words, ranges
        self._states, self._pruned = optuna.trial.TrialState, optuna.TrialPruned
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        check_writable(path, 0)
        if "?" in str(path):
            raise OptionError("--study", "its name must have no ?, which SQLite has other uses for", received=path)
        self._study: Any = _study(optuna, path, name)
        before = self._study.user_attrs.get(_COMMAND)
        if before not in (None, words):
            rule, hint = "a study must go on with the command that it began with", "--name NAME begins another study."
            raise OptionError("--study", rule, saved=shlex.join(before), now=shlex.join(words), hint=hint)
        self._study.set_user_attr(_COMMAND, words)

    @property
    def count(self) -> int:
        """The trials that ended, but for those that Ctrl-C ended."""
        return sum(self._ended(each) for each in self._study.trials)

    def _ended(self, trial: Any) -> bool:
        return trial.state in (self._states.COMPLETE, self._states.PRUNED) or _ERROR in trial.user_attrs

    def train(self) -> str:
        """Trains with the settings of a new trial, and returns what to say of it.

        Raises:
            BlobnetError: the first trial fails, and not for its settings.
        """
        study, states = self._study, self._states
        trial = study.ask()
        drawn = {each: each.draw(trial) for each in self._ranges}
        words = [*_filled(self._words, drawn), "--output", str(self._file(trial.number))]
        said = ", ".join(f"{each.option[2:]} {text}" for each, text in drawn.items())
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                train.run(_options(words), [OptunaPruning(trial)])
            values = study.trials[trial.number].intermediate_values.values()
            value = min(filter(math.isfinite, values), default=None)
            if value is None:
                raise TrainingError("validation_loss", "it must be finite after an epoch")
            study.tell(trial, value)
            best = study.best_trial
            result = f"validation_loss {value:.4g} (best {best.value:.4g} in trial {best.number})"
        except self._pruned as pruned:
            study.tell(trial, state=states.PRUNED)
            result = str(pruned)
        except BlobnetError as error:
            trial.set_user_attr(_ERROR, str(error))
            study.tell(trial, state=states.FAIL)
            if not (isinstance(error, TrainingError | DeviceError | PlanError) or self._has_results):
                study.set_user_attr(_COMMAND, None)  # Which may be what is wrong.
                raise
            result = f"failed: {error}".rstrip(".")
        except BaseException:
            study.tell(trial, state=states.FAIL, skip_if_finished=True)
            raise
        finally:
            self._remove_others()
        return f"trial {trial.number}: {result}; {said}"

    def summary(self) -> str:
        """What the best trial was, and the command that trains it again."""
        trials = self._study.trials
        counts = {state: sum(each.state == state for each in trials) for state in self._states}
        some = (f"{counts[state]} {state.name.lower()}" for state in self._states if counts[state])
        told = f"{counted(len(trials), 'trial')} ({', '.join(some)})"
        if not counts[self._states.COMPLETE]:
            return f"no best model yet: {told}"
        best = self._study.best_trial
        words = _filled(self._words, {each: str(best.params[each.option]) for each in self._ranges})
        found = (
            f"best: trial {best.number} of {told}, validation_loss {best.value:.4g}; saved {self._file(best.number)}"
        )
        return f"{found}\nblobnet {shlex.join(words)}"

    @property
    def _has_results(self) -> bool:
        return any(each.state in (self._states.COMPLETE, self._states.PRUNED) for each in self._study.trials)

    def _file(self, number: int) -> Path:
        """The model of a trial."""
        return self._path.with_name(f"{self._path.stem}-{self._study.study_name}-{number}.h5")

    def _remove_others(self) -> None:
        """Removes the models of all trials that ended, by whatever process, but for the best one."""
        trials = self._study.trials  # Asked for once: a trial that ends meanwhile may be the best one.
        complete = [each for each in trials if each.state == self._states.COMPLETE]
        best = min(complete, key=lambda each: each.value, default=None)
        for each in trials:
            if each.state.is_finished() and (best is None or each.number != best.number):
                self._file(each.number).unlink(missing_ok=True)
