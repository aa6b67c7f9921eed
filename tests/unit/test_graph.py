"""Graphs: order, names, descriptions, and what is refused."""

from __future__ import annotations

import json

import pytest

from blobnet import layers
from blobnet.errors import FileError, OptionError, ShapeError
from blobnet.memory.blob import Shape
from blobnet.network.graph import Graph, from_description, from_nodes, sequential
from tests.small_graphs import KNOWN_GRAPHS, random_graph


def names(graph: Graph) -> list[str]:
    return [vertex.name for vertex in graph.vertices]


# -- order -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_every_vertex_comes_after_its_inputs(seed: int) -> None:
    graph = random_graph(seed)
    assert [vertex.index for vertex in graph.vertices] == list(range(len(graph.vertices)))
    assert all(source < vertex.index for vertex in graph.vertices for source in vertex.inputs)
    assert graph.input.layer.kind == "Input"
    assert not graph.readers[graph.output.index]
    # Everything leads to the output.
    assert all(graph.readers[vertex.index] for vertex in graph.vertices[:-1])


def test_readers_are_listed_as_often_as_they_read() -> None:
    images = layers.Input(2, 3, 3, name="in")()
    node = layers.Activation("relu", name="a")(images)
    graph = from_nodes(images, layers.Add(name="sum")([node, node, images]))
    assert names(graph) == ["in", "a", "sum"]
    assert graph.readers == ((1, 2), (2, 2), ())
    assert graph.vertices[2].inputs == (1, 1, 0)
    assert graph.input_shapes(graph.vertices[2]) == [Shape(2, 3, 3)] * 3


def test_nodes_that_do_not_lead_to_the_output_are_left_out() -> None:
    images = layers.Input(2, 3, 3)()
    layers.Conv2D(100, 3)(images)
    node = layers.Activation("relu")(images)
    assert names(from_nodes(images, node)) == ["input_1", "activation_1"]


def test_a_part_of_a_network_is_a_network() -> None:
    images = layers.Input(2, 3, 3)()
    middle = layers.Activation("relu")(images)
    layers.Flatten()(middle)
    assert from_nodes([images], [middle]).output.shape == Shape(2, 3, 3)


def test_deep_graphs_do_not_exhaust_the_stack() -> None:
    images = layers.Input(1, 2, 2)()
    node = images
    for _ in range(3000):
        node = node + images
    assert len(from_nodes(images, node).vertices) == 3001


# -- names -------------------------------------------------------------------------------------------------------------


def test_layers_without_a_name_are_numbered_by_kind() -> None:
    graph = sequential(
        [
            layers.Input(1, 8, 8),
            layers.Conv2D(2, 3),
            layers.Conv2D(2, 3, name="conv2d_2"),
            layers.Conv2D(2, 3, activation="relu"),
            layers.Dense(3),
        ]
    )
    assert names(graph) == ["input_1", "conv2d_1", "conv2d_2", "conv2d_3", "conv2d_3_relu", "dense_1"]
    assert list(graph.named_parameters)[:4] == ["input_1/mean", "input_1/deviation", "conv2d_1/weight", "conv2d_1/bias"]


def test_a_layer_without_parameters_may_stand_in_two_places() -> None:
    images = layers.Input(2, 3, 3)()
    relu = layers.Activation("relu")
    graph = from_nodes(images, relu(images) + relu(layers.Conv2D(2, 1)(images)))
    assert names(graph) == ["input_1", "activation_1", "conv2d_1", "activation_2", "add_1"]


def test_a_layer_in_several_places_has_its_parameters_once() -> None:
    images = layers.Input(2, 3, 3)()
    layer, relu = layers.Dense(3, name="d", activation="relu"), layers.Activation("relu", name="r")
    graph = from_nodes(images, relu(layer(images)) + layer(relu(images)))
    assert names(graph) == ["input_1", "d", "d_relu", "r", "r@2", "d@2", "d_relu@2", "add_1"]
    assert list(graph.named_parameters) == ["input_1/mean", "input_1/deviation", "d/weight", "d/bias"]
    assert [graph.places(vertex) for vertex in graph.vertices] == [1, 2, 2, 2, 2, 2, 2, 1]
    assert graph.vertices[5].layer is graph.vertices[1].layer
    unnamed = layers.Dense(18)
    graph = from_nodes(images, unnamed(unnamed(images)))
    assert names(graph) == ["input_1", "dense_1", "dense_1@2"]


def test_other_names_may_not_meet_those_of_places() -> None:
    images = layers.Input(2, 3, 3)()
    layer = layers.Dense(3, name="d")
    with pytest.raises(OptionError, match=r"Model: layer names must be unique\. Received doubled=\['d@2'\]"):
        from_nodes(images, layers.Add()([layer(images), layer(images), layers.Dense(3, name="d@2")(images)]))


def test_names_must_be_unique() -> None:
    images = layers.Input(2, 3, 3)()
    with pytest.raises(OptionError, match=r"Model: layer names must be unique\. Received doubled=\['d'\]"):
        from_nodes(images, layers.Dense(3, name="d")(images) + layers.Dense(3, name="d")(images))


def test_the_name_of_a_split_off_activation_must_be_unique_too() -> None:
    with pytest.raises(OptionError, match=r"layer names must be unique\. Received doubled=\['c_relu'\]"):
        sequential(
            [
                layers.Input(1, 8, 8),
                layers.Conv2D(2, 3, activation="relu", name="c"),
                layers.Activation("relu", name="c_relu"),
            ]
        )


# -- descriptions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOWN_GRAPHS)
def test_a_description_survives_json_and_gives_the_same_graph(name: str) -> None:
    graph = KNOWN_GRAPHS[name]()
    again = from_description(json.loads(json.dumps(graph.description())), "file")
    assert again == graph


def test_descriptions_of_random_graphs() -> None:
    for seed in range(30):
        graph = random_graph(seed)
        assert from_description(json.loads(json.dumps(graph.description())), "file") == graph, seed


def test_a_description_must_name_known_layers() -> None:
    description = KNOWN_GRAPHS["vectors"]().description()
    description[1]["kind"] = "Dens"
    rule = r"m\.h5: every layer kind must be a known one\. Received kind=Dens\. Hint: .*, did you mean 'Dense'"
    with pytest.raises(FileError, match=rule):
        from_description(description, "m.h5")


@pytest.mark.parametrize(
    "broken",
    [
        [],
        [{}],
        ["Dense"],
        [{"kind": "Input", "config": {"width": 3}, "inputs": []}],
        [{"kind": "Input", "config": {"units": 3, "name": "a", "no": 1}, "inputs": []}],
        [{"kind": "Input", "config": {"units": 3, "name": "a"}, "inputs": ["b"]}],
    ],
    ids=str,
)
def test_broken_descriptions(broken: list[dict[str, object]]) -> None:
    with pytest.raises(FileError, match=r"m\.h5: the architecture must be a list of layers with kind, config"):
        from_description(broken, "m.h5")


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_model_has_the_inputs_that_its_outputs_need() -> None:
    first, second = layers.Input(3)(), layers.Input(3)()
    with pytest.raises(OptionError, match=r"Model: each of the outputs must be another node\. Received "):
        from_nodes(first, [first, first])
    with pytest.raises(OptionError, match=r"Model: inputs must be one node, or several ones in a list or by name"):
        from_nodes([], first)
    with pytest.raises(OptionError, match=r"Model: the outputs must depend on exactly the input that is given"):
        from_nodes(first, first + second)
    with pytest.raises(OptionError, match=r"Model: the outputs must depend on exactly the input that is given"):
        from_nodes(first, layers.Dense(3)(second))
    with pytest.raises(OptionError, match=r"Model: outputs must be one node, .* Received \['Dense'\]"):
        from_nodes(first, [layers.Dense(3)])  # type: ignore[list-item]


def test_the_input_of_a_model_is_an_input_layer() -> None:
    images = layers.Input(3, 8, 8)()
    middle = layers.Conv2D(2, 3)(images)
    with pytest.raises(OptionError, match=r"Model: the outputs must depend on exactly the input that is given"):
        from_nodes(middle, layers.Dense(2)(middle))


@pytest.mark.parametrize(
    "stack",
    [
        [],
        [layers.Input(3)],
        [layers.Dense(3)],
        [layers.Dense(3), layers.Input(3)],
        [layers.Input(3), layers.Input(3), layers.Dense(3)],
    ],
    ids=lambda stack: "-".join(layer.kind for layer in stack) or "nothing",
)
def test_a_sequence_is_one_input_and_other_layers(stack: list[layers.Layer]) -> None:
    rule = r"Sequential: the layers must be one Input and then at least one other layer\. Received layers=\["
    with pytest.raises(OptionError, match=rule):
        sequential(stack)


def test_a_sequence_holds_layers_only() -> None:
    with pytest.raises(OptionError, match=r"Sequential: .*layers=\['Input', 'str'\]"):
        sequential([layers.Input(3), "relu"])  # type: ignore[list-item]


def test_a_sequence_holds_no_classes() -> None:
    rule = r"Sequential: .*layers=\['Input', '\w+', 'Dense'\]\. Hint: Flatten is a class: write Flatten\(\), with the "
    with pytest.raises(OptionError, match=rule):
        sequential([layers.Input(1, 8, 8), layers.Flatten, layers.Dense(3)])  # type: ignore[list-item]
    with pytest.raises(OptionError, match=r"Sequential: .* Hint: Input is a class: write Input\(\), with the "):
        sequential([layers.Input, layers.Flatten(), layers.Dense(3)])  # type: ignore[list-item]


def test_neighbours_must_fit() -> None:
    rule = r"conv2d_1 \(Conv2D\): the dilated filter must fit the padded input\. Received input=\(1, 2, 2\)"
    with pytest.raises(ShapeError, match=rule):
        sequential([layers.Input(1, 2, 2), layers.Conv2D(4, 3)])
    with pytest.raises(ShapeError, match=r"sum \(Add\): all inputs must have the same shape, .*inputs=\(3\) \(2\)"):
        layers.Add(name="sum")([layers.Input(3)(), layers.Input(2)()])
    with pytest.raises(ShapeError, match=r"Add: the layer takes at least 2 input\(s\)\. Received inputs=1"):
        layers.Add()(layers.Input(3)())
    with pytest.raises(ShapeError, match=r"Dense: the layer takes 1 input\(s\)\. Received inputs=2"):
        layers.Dense(3)([layers.Input(3)()] * 2)
    with pytest.raises(ShapeError, match=r"Concat: all inputs must have the same axes but for the units"):
        layers.Concat()([layers.Input(3, 2, 2)(), layers.Input(3, 2, 3)()])
