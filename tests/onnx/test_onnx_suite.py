"""ONNX's own backend tests: the float32 ones of the operators that docs/onnx.md lists, and the light models."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

import blobnet as bn
from blobnet.onnx.host import KINDS
from blobnet.onnx.operators import OPERATORS

_PAGE = (Path(__file__).parents[2] / "docs/onnx.md").read_text(encoding="utf-8")
_LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
#: The types of what such tests give and want, by ONNX's numbers: float32, and int32, int64 and bool beside it.
_FLOAT, _TYPES = 1, {1, 6, 7, 9}
#: Models, and what the suite allows for each.
_MODELS = {
    "bvlc_alexnet": 1e-3,
    "densenet121": 2e-3,
    "inception_v1": 1e-3,
    "inception_v2": 1e-3,
    "resnet50": 1e-3,
    "shufflenet": 1e-3,
    "squeezenet": 1e-3,
    "vgg19": 1e-3,
    "zfnet512": 1e-3,
}


@cache
def node_tests() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of NumPy, as the tests are made.
        return load_model_tests(kind="node")  # type: ignore[no-any-return]


@cache
def cases() -> dict[str, list[Any]]:
    """The tests by operator of the device: those of a node, and those of the same with functions written out."""
    plain = {}
    for case in node_tests():
        kinds = {node.op_type for node in case.model.graph.node}
        if len(kinds) == 1 and kinds <= set(OPERATORS) and _is_float(case.model.graph):
            plain[case.name] = next(iter(kinds))
    groups = defaultdict(list)
    for case in node_tests():
        name = re.sub(r"_expanded(_ver\d+)?$", "", case.name)
        if name in plain and _is_float(case.model.graph):
            groups[plain[name]].append(case)
    return groups


def _is_float(graph: Any) -> bool:
    inputs, outputs = ([item.type.tensor_type.elem_type for item in ends] for ends in (graph.input, graph.output))
    return _FLOAT in inputs and {*inputs, *outputs} <= _TYPES


def reasons() -> dict[str, str]:
    """The tests that docs/onnx.md says fail, and why."""
    return dict(re.findall(r"^\| `(test_\w+)` \| (.+?) \|$", _PAGE, re.MULTILINE))


@pytest.mark.parametrize("kind", sorted(OPERATORS))
def test_node_tests_pass_but_for_those_of_the_page(kind: str) -> None:
    known, failed, passed = reasons(), {}, []
    for case in cases()[kind]:
        try:
            prepared = bn.onnx.Backend.prepare(case.model)
            for inputs, outputs in case.data_sets:
                Runner.assert_similar_outputs(outputs, prepared.run(list(inputs)), case.rtol, case.atol)
            passed.append(case.name)
        except (AssertionError, bn.errors.BlobnetError) as error:
            failed[case.name] = str(error)
    unknown = {name: error for name, error in failed.items() if known.get(name, "not there") not in error}
    assert not unknown, unknown
    assert not known.keys() & set(passed), "docs/onnx.md says that these fail"


@pytest.mark.parametrize("kind", sorted(KINDS - OPERATORS.keys()))
def test_node_tests_of_the_host_pass(kind: str) -> None:
    """Of all types: what the device does not have is ONNX's own evaluator's, and boxes' are blobnet's."""
    own = [case for case in node_tests() if [node.op_type for node in case.model.graph.node] == [kind]]
    assert own or kind == "ConstantOfShape", kind
    for case in own:
        prepared = bn.onnx.Backend.prepare(case.model)
        for inputs, outputs in case.data_sets:
            Runner.assert_similar_outputs(outputs, prepared.run(list(inputs)), case.rtol, case.atol)


@pytest.mark.long
def test_node_tests_of_loops_and_einsum_pass() -> None:
    """Of all types, but for sequences, Scan with samples of its own, and whole numbers that are made of values."""
    own = [
        case for case in node_tests() if {node.op_type for node in case.model.graph.node} & {"Loop", "Scan", "Einsum"}
    ]
    others = re.compile(r"test_(sequence_map|loop1[36]_seq|scan_sum$|range_float)")
    own = [case for case in own if not others.match(case.name)]
    assert len(own) > 20
    for case in own:
        prepared = bn.onnx.Backend.prepare(case.model)
        for inputs, outputs in case.data_sets:
            Runner.assert_similar_outputs(
                outputs, prepared.run(list(inputs)), max(case.rtol, 1e-5), max(case.atol, 1e-5)
            )


@cache
def old_tests() -> list[Any]:
    """The suite's tests of files from before operator set 7, each in a folder with its arrays."""
    found = [
        case for kind in ("pytorch-converted", "pytorch-operator", "simple") for case in load_model_tests(kind=kind)
    ]
    models = [(case, onnx.load(Path(case.model_dir) / "model.onnx")) for case in found if case.model_dir]
    return [case for case, model in models if max(item.version for item in model.opset_import) < 7]


#: float64 values that float32 does not hold, in which everything is computed.
_BEYOND_FLOAT32 = {"add_broadcast", "add_size1_right_broadcast", "add_size1_singleton_broadcast", "addconstant"}


@pytest.mark.parametrize("part", range(4))
@pytest.mark.long
def test_files_from_before_operator_set_seven_pass(part: int) -> None:
    assert len(old_tests()) > 100
    for case in old_tests()[part::4]:
        folder = Path(case.model_dir) / "test_data_set_0"
        ends = []
        for side in ("input", "output"):
            files = [folder / f"{side}_{place}.pb" for place in range(len([*folder.glob(f"{side}_*")]))]
            ends.append([onnx.numpy_helper.to_array(onnx.load_tensor(str(path))) for path in files])
        prepared = bn.onnx.Backend.prepare(onnx.load(Path(case.model_dir) / "model.onnx"))
        if case.name.removeprefix("test_operator_") in _BEYOND_FLOAT32:
            with pytest.raises(bn.errors.DataError, match="x must hold finite float32 values"):
                prepared.run(ends[0])
            continue
        Runner.assert_similar_outputs(ends[1], prepared.run(ends[0]), case.rtol, case.atol)


def test_at_least_95_of_100_node_tests_pass() -> None:
    count = sum(map(len, cases().values()))
    assert count > 500
    if onnx.__version__.startswith("1.23."):
        assert f"Of the {count} float32 node tests" in _PAGE
    assert set(reasons()) <= {case.name for group in cases().values() for case in group}
    assert len(reasons()) <= 0.05 * count


def test_page_lists_the_operators() -> None:
    for block, kinds in (("operators", OPERATORS.keys()), ("host", KINDS - OPERATORS.keys())):
        listed = re.findall(r"\w+", _PAGE.split(f"<!-- {block} -->")[1])
        assert sorted(listed) == sorted(kinds)


@pytest.mark.parametrize("name", _MODELS)
@pytest.mark.long
def test_light_models_run_in_the_tolerance_of_the_suite(name: str) -> None:
    model = onnx.load(_LIGHT / f"light_{name}.onnx")
    known = {item.name for item in model.graph.initializer}
    (entry,) = (item for item in model.graph.input if item.name not in known)
    inputs = Runner.generate_dummy_data(entry)
    wanted = onnx.numpy_helper.to_array(onnx.load_tensor(str(_LIGHT / f"light_{name}_output_0.pb")))
    found = bn.onnx.Backend.run_model(model, [inputs])
    Runner.assert_similar_outputs([wanted], found, _MODELS[name], 1e-7)


@pytest.mark.parametrize("name", [name for name in _MODELS if name not in ("vgg19", "bvlc_alexnet", "zfnet512")])
@pytest.mark.long
def test_light_models_with_random_weights_are_those_of_onnxruntime(name: str, tmp_path: Path) -> None:
    """The files have the same number in all weights, so that many mistakes would not be seen."""
    runtime = pytest.importorskip("onnxruntime")
    model = onnx.load(_LIGHT / f"light_{name}.onnx")
    random = np.random.default_rng(0)
    shapes = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    entry = next(item for item in model.graph.input if item.name not in shapes)
    positive = {node.input[4] for node in model.graph.node if node.op_type == "BatchNormalization"}
    for node in [node for node in model.graph.node if node.op_type == "ConstantOfShape"]:
        shape = tuple(shapes[node.input[0]])
        values = random.standard_normal(shape) * np.sqrt(2 / max(1, np.prod(shape[1:])))
        values = np.abs(values) + 0.5 if node.output[0] in positive or len(shape) == 1 else values
        model.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), node.output[0]))
        model.graph.node.remove(node)
    # What softmax makes of large numbers says little of them.
    last = model.graph.node[-1]
    if last.op_type == "Softmax":
        model.graph.node.remove(last)
        model.graph.output[0].name = last.input[0]
    path = tmp_path / "model.onnx"
    model.ir_version = 8  # From 4 on, initializers are no inputs.
    onnx.save(model, path)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    x = random.standard_normal([dim.dim_value for dim in entry.type.tensor_type.shape.dim]).astype(np.float32)
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {entry.name: x})
    found = bn.onnx.load(path).predict(x).reshape(wanted.shape)
    assert np.ptp(wanted) > 0
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
