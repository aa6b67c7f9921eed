"""Metrics against what their definitions say, counted one by one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from blobnet import metrics
from blobnet.errors import OptionError
from blobnet.losses import BinaryCrossEntropy, CrossEntropy, MeanSquaredError
from blobnet.metrics import (
    LabelReport,
    NumberReport,
    Report,
    class_auc,
    class_average_precision,
    confusion_matrix,
)
from blobnet.metrics.naming import answers, measured, named
from blobnet.metrics.report import report_of


def batch(samples: int, classes: int, seed: int = 0, levels: int = 1000) -> tuple[Any, Any]:
    """Labels, of which the last class has none, and scores with ties."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes - 1, samples)
    scores = random.integers(0, levels, (samples, classes)) + levels * 0.4 * (labels[:, None] == np.arange(classes))
    return labels, scores / scores.sum(axis=1, keepdims=True)


def counted(labels: Any, predicted: Any, of: int) -> tuple[int, int, int]:
    """Hits, false alarms and misses of a class."""
    pairs = list(zip(labels.tolist(), predicted.tolist(), strict=True))
    hits = sum(label == of and taken == of for label, taken in pairs)
    alarms = sum(label != of and taken == of for label, taken in pairs)
    misses = sum(label == of and taken != of for label, taken in pairs)
    return hits, alarms, misses


@pytest.mark.parametrize(("samples", "classes"), [(1, 2), (7, 3), (200, 5), (64, 11)])
def test_metrics_of_classes(samples: int, classes: int) -> None:
    labels, scores = batch(samples, classes, seed=samples)
    predicted = scores.argmax(axis=1)
    matrix = confusion_matrix(labels, predicted, classes)
    for one, other in itertools.product(range(classes), repeat=2):
        assert matrix[one, other] == sum((labels == one) & (predicted == other))
    each: dict[str, list[float]] = {"precision": [], "recall": [], "f1": [], "iou": []}
    report = Report(matrix, tuple(map(str, range(classes))), class_auc(labels, scores))
    for of in range(classes):
        hits, alarms, misses = counted(labels, predicted, of)
        values = {
            "precision": hits / (hits + alarms) if hits + alarms else 0,
            "recall": hits / (hits + misses) if hits + misses else 0,
            "f1": 2 * hits / (2 * hits + alarms + misses) if hits + alarms + misses else 0,
            "iou": hits / (hits + alarms + misses) if hits + alarms + misses else 0,
        }
        for name, value in values.items():
            assert getattr(report, name)[of] == pytest.approx(value)
            each[name] += [value] if of in labels else []
        assert report.samples[of] == (labels == of).sum()
    for name, values_of_present in each.items():
        assert getattr(metrics, name)(labels, scores) == pytest.approx(np.mean(values_of_present))
    assert report.accuracy == pytest.approx((predicted == labels).mean())


@pytest.mark.parametrize("levels", [2, 100000, 7])  # Few levels, so ties, at both ends: of a sample, too.
def test_auc_counts_pairs(levels: int) -> None:
    labels, scores = batch(60, 4, seed=levels, levels=levels)
    found = class_auc(labels, scores)
    for of in range(3):
        pairs = list(itertools.product(scores[labels == of, of], scores[labels != of, of]))
        wins = sum(1.0 if mine > other else 0.5 if mine == other else 0.0 for mine, other in pairs)
        assert found[of] == pytest.approx(wins / len(pairs))
    assert math.isnan(found[3])
    assert metrics.auc(labels, scores) == pytest.approx(found[:3].mean())
    assert metrics.auc(np.array([0, 0]), np.eye(2)) != metrics.auc(np.array([0, 1]), np.eye(2)) == 1
    targets = (labels[:, None] == np.arange(4)).astype(float)
    np.testing.assert_array_equal(class_auc(targets, scores), found)


def several(samples: int, labels: int, seed: int) -> tuple[Any, Any]:
    """Several labels for each sample, of which none has the last one, and scores with ties."""
    random = np.random.default_rng(seed)
    has = (random.random((samples, labels)) < 0.4) * (np.arange(labels) < labels - 1)
    return has.astype(float), (random.integers(0, 12, has.shape) + 5 * has) / 17


@pytest.mark.parametrize(("samples", "labels"), [(1, 2), (9, 3), (150, 6)])
def test_metrics_of_several_labels(samples: int, labels: int) -> None:
    has, scores = several(samples, labels, seed=samples)
    said = scores > 0.5
    report = LabelReport.of(has, scores, tuple(map(str, range(labels))))
    columns, found = report.columns(), class_average_precision(has, scores)
    each: dict[str, list[float]] = {"precision": [], "recall": [], "f1": [], "iou": [], "average_precision": []}
    for unit in range(labels):
        hits, alarms, misses = counted(has[:, unit], said[:, unit], 1)
        values = {
            "precision": hits / (hits + alarms) if hits + alarms else 0,
            "recall": hits / (hits + misses) if hits + misses else 0,
            "f1": 2 * hits / (2 * hits + alarms + misses) if hits + alarms + misses else 0,
            "iou": hits / (hits + alarms + misses) if hits + alarms + misses else 0,
        }
        for title, name in (("precision", "precision"), ("recall", "recall"), ("F1", "f1"), ("IoU", "iou")):
            assert columns[title][unit] == pytest.approx(values[name])
        assert report.samples[unit] == has[:, unit].sum()
        if not has[:, unit].any():
            assert math.isnan(found[unit])
            continue
        # By its definition: the recall that each threshold wins, times the precision there.
        area, before = 0.0, 0.0
        for threshold in sorted(set(scores[:, unit]), reverse=True):
            taken = scores[:, unit] >= threshold
            recall = has[taken, unit].sum() / has[:, unit].sum()
            area, before = area + (recall - before) * has[taken, unit].mean(), recall
        assert found[unit] == pytest.approx(area, rel=1e-12)
        for name, value in {**values, "average_precision": area}.items():
            each[name].append(value)
    for name, known in each.items():
        value = getattr(metrics, name)(has, scores)
        assert value == pytest.approx(np.mean(known)) if known else math.isnan(value)
    assert report.exact == sum((has > 0.5)[n].tolist() == said[n].tolist() for n in range(samples))


def test_metrics_are_those_of_scikit_learn() -> None:
    theirs = pytest.importorskip("sklearn.metrics")
    has, scores = several(300, 5, seed=4)
    has, scores = has[:, :4], scores[:, :4]
    expected = theirs.average_precision_score(has, scores, average=None)
    np.testing.assert_allclose(class_average_precision(has, scores), expected, rtol=1e-12)
    assert metrics.average_precision(has, scores) == pytest.approx(theirs.average_precision_score(has, scores))
    for name, function in (("f1", "f1_score"), ("precision", "precision_score"), ("recall", "recall_score")):
        expected = getattr(theirs, function)(has, scores > 0.5, average="macro", zero_division=0)
        assert getattr(metrics, name)(has, scores) == pytest.approx(expected)
    labels, probabilities = batch(200, 4, seed=8)
    one = np.eye(4)[labels][:, :3]
    expected = theirs.average_precision_score(one, probabilities[:, :3])
    assert metrics.average_precision(labels, probabilities) == pytest.approx(expected)
    targets, outputs = np.random.default_rng(1).normal(5, 2, (2, 40, 3))
    report = NumberReport.of(targets, outputs, ("a", "b", "c"))
    np.testing.assert_allclose(report.r2, theirs.r2_score(targets, outputs, multioutput="raw_values"))
    np.testing.assert_allclose(report.mae, theirs.mean_absolute_error(targets, outputs, multioutput="raw_values"))


def test_reports_by_the_kind_of_the_loss() -> None:
    logits, has = np.float32([[4, -4], [4, 4], [-4, -4], [-4, 4]]), np.float32([[1, 0], [1, 1], [0, 1], [0, 1]])
    found = report_of(BinaryCrossEntropy(), has, logits, ("cat", "red"))
    assert isinstance(found, LabelReport)
    text = str(found).splitlines()
    assert text[0].split() == ["label", "precision", "recall", "F1", "IoU", "AP", "AUC", "samples"]
    assert text[1].split() == ["cat", *["1.0000"] * 6, "2"]
    assert text[2].split()[:5] == ["red", "1.0000", "0.6667", "0.8000", "0.6667"]
    assert text[3].split()[0] == "mean"
    assert text[4].endswith("all labels right 0.7500")
    targets, outputs = np.float32([[1, 300], [3, 500], [5, 400]]), np.float32([[1, 300], [2, 600], [8, 400]])
    numbers = report_of(MeanSquaredError(), targets, outputs, ("age", "price"))
    assert isinstance(numbers, NumberReport)
    assert [line.split() for line in str(numbers).splitlines()] == [
        ["number", "MAE", "RMSE", "bias", "R2", "samples"],
        ["age", "1.3333", "1.8257", "0.6667", "-0.2500", "3"],
        ["price", "33.3333", "57.7350", "33.3333", "0.5000", "3"],
        ["mean", "17.3333", "29.7804", "17.0000", "0.1250", "3"],
        ["MAE", "17.3333,", "R2", "0.1250"],
    ]


def test_metrics_of_targets() -> None:
    targets, outputs = np.array([[1.0, 2], [3, 5], [5, 2]]), np.array([[1.0, 3], [2, 5], [8, 0]])
    assert metrics.mae(targets, outputs) == pytest.approx((0 + 1 + 1 + 0 + 3 + 2) / 6)
    assert metrics.rmse(targets, outputs) == pytest.approx(math.sqrt((1 + 1 + 9 + 4) / 6))
    assert metrics.r2(targets, outputs) == pytest.approx(((1 - 10 / 8) + (1 - 5 / 6)) / 2)
    assert metrics.r2(targets, targets) == 1
    assert math.isnan(metrics.r2(np.ones((3, 1)), np.ones((3, 1))))


def test_what_metrics_get() -> None:
    outputs = np.random.default_rng(3).standard_normal((2, 3, 2, 2)).astype(np.float32)
    loss = CrossEntropy(ignore=9)
    labels, scores = answers(loss, loss.device_labels(np.array([[[0, 9], [2, 1]], [[9, 9], [1, 0]]])), outputs)
    assert labels.tolist() == [0, 2, 1, 1, 0]
    powers = np.exp(outputs[1, :, 1, 0].astype(np.float64))
    np.testing.assert_allclose(scores[3], powers / powers.sum())
    flat, targets = outputs.reshape(2, 12), np.zeros((2, 12))
    np.testing.assert_allclose(answers(BinaryCrossEntropy(), targets, outputs)[1], 1 / (1 + np.exp(-flat)), rtol=1e-6)
    np.testing.assert_array_equal(answers(MeanSquaredError(), targets, outputs)[1], flat)


def spread(labels: Any, scores: Any) -> float:
    return float(scores.max() - scores.min())


def nothing(labels: Any, scores: Any) -> Any:
    return None


def test_metrics_by_name_and_of_ones_own() -> None:
    found = named(["f1", metrics.auc, spread], CrossEntropy())
    assert found == {"f1": metrics.f1, "auc": metrics.auc, "spread": spread}
    assert list(named(["mae", "r2"], MeanSquaredError())) == ["mae", "r2"]
    assert named("f1", CrossEntropy()) == {"f1": metrics.f1}
    assert named(spread, CrossEntropy()) == {"spread": spread}
    outputs = np.float32([[2, 0], [0, 1]])
    assert measured(found, CrossEntropy(), np.array([0, 1]), outputs)["f1"] == 1
    for asked, message in (
        (
            ["mae"],
            r"metrics: a name must be that of a metric of classes\. Received metric=mae\. "
            r"Hint: the model's loss is CrossEntropy, which takes classes\.",
        ),
        (["map"], r"Received metric=map\. Hint: known names: auc, "),
        (["precison"], r"Hint: did you mean 'precision' or 'average_precision'\?"),
        (["accuracy"], r"Received metric=accuracy\. Hint: leave it out: accuracy is always measured\.$"),
        ([3], r"metrics: each metric must be a name or a function of \(labels, scores\)\. Received metric=3\."),
        (["f1", metrics.f1], r"metrics: each metric must have a name of its own.* Received name=f1\."),
    ):
        with pytest.raises(OptionError, match=message):
            named(asked, CrossEntropy())
    with pytest.raises(
        OptionError, match=r"metric nothing: a metric must return one number\. Received returned=NoneType"
    ):
        measured({"nothing": nothing}, CrossEntropy(), np.array([0, 1]), outputs)


def test_metrics_as_expressions() -> None:
    random = np.random.default_rng(3)
    targets, outputs = random.standard_normal((2, 9, 4))
    text = "function (P[N, C], T[N, C]) -> (M) { M[n] = >(abs(P[n, c] - T[n, c]) / S); }"
    worst = metrics.Expression(text, "worst", {"S": 2})
    assert worst == metrics.Expression(text, "worst", worst.sizes)
    found = measured(named(["mae", worst], MeanSquaredError()), MeanSquaredError(), targets, outputs)
    assert found["worst"] == pytest.approx(np.abs(targets - outputs).max(axis=1).mean() / 2, rel=1e-12)
    labels, scores = batch(20, 5)
    text = "function (P[N, C], T[N]) -> (M) { M[n] = +(T[n] == c ? P[n, c]); }"
    sure = metrics.Expression(text)
    assert named(sure, CrossEntropy()) == {"expression": sure}
    assert sure(labels, scores) == pytest.approx(scores[np.arange(20), labels].mean(), rel=1e-12)
    with pytest.raises(OptionError, match=r"metric m: the text must have two inputs, .* Received inputs=\('P',\)"):
        metrics.Expression("M[n] = +(P[n, c])", "m")


def test_report_as_text() -> None:
    logits = np.float32([[4, 0, 0], [3, 1, 0], [0, 2, 0], [0, 0, 1], [0, 3, 1]])
    report = Report.of(CrossEntropy(), np.array([0, 1, 1, 1, 1]), logits, ("cat", "black\tdog", "owl"))
    assert report.matrix.tolist() == [[1, 0, 0], [1, 2, 1], [0, 0, 0]]
    assert str(report).splitlines() == [
        "class      precision recall     F1    IoU    AUC samples",
        "cat           0.5000 1.0000 0.6667 0.5000 1.0000       1",
        "black\\tdog    1.0000 0.5000 0.6667 0.5000 1.0000       4",
        "owl           0.0000 0.0000 0.0000 0.0000    nan       0",
        "mean          0.7500 0.7500 0.6667 0.5000 1.0000       5",
        "accuracy 0.6000",
    ]
    assert str(Report.summed([report])).splitlines()[1].endswith("0.6667 0.5000       1")  # No areas, no column.
    with pytest.raises(OptionError, match=r"report: the loss must be one of classes\. .*Hint: measure mae, rmse or r2"):
        Report.of(MeanSquaredError(), np.zeros((2, 1)), np.zeros((2, 1), np.float32))
