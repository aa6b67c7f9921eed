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
from blobnet.metrics import Report, class_auc, confusion_matrix
from blobnet.metrics.naming import answers, measured, named


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
        (["precison"], r"Hint: did you mean 'precision'\?"),
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
