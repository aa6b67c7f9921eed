"""What each vertex does in a plan."""

from __future__ import annotations

from blobnet import layers
from blobnet.layers.base import Placement
from blobnet.network.graph import Graph, sequential
from blobnet.planning.roles import Roles, assign_roles
from tests.planning.stages import request_for


def chain() -> Graph:
    return sequential(
        [
            layers.Input(2, 5, 4, name="images"),
            layers.Conv2D(3, 3, name="first"),
            layers.BatchNorm(name="norm"),
            layers.Activation("relu", name="relu"),
            layers.Dense(2, name="last"),
        ]
    )


def named(roles: Roles, values: tuple[object, ...]) -> dict[str, object]:
    return dict(zip(("images", "first", "norm", "relu", "last"), values, strict=True))


def test_everything_is_trained() -> None:
    roles = assign_roles(request_for(chain()))
    assert roles.trained == (set(), {"weight", "bias"}, {"scale", "shift"}, set(), {"weight", "bias"})
    assert not any(roles.frozen)
    assert roles.in_training == (True,) * 5
    assert roles.needs_delta == (False, True, True, True, True)
    assert assign_roles(request_for(chain(), input_delta=True)).needs_delta == (True,) * 5


def test_behind_what_is_trained_first_everything_needs_deltas() -> None:
    frozen = ("first/weight", "first/bias", "norm/scale")
    roles = assign_roles(request_for(chain(), frozen=frozen))
    assert named(roles, roles.frozen)["first"] == {"weight", "bias"}
    assert named(roles, roles.frozen)["norm"] == {"scale"}
    assert named(roles, roles.trained)["norm"] == {"shift"}
    assert roles.in_training == (True, False, True, True, True)
    assert roles.needs_delta == (False, False, True, True, True)


def test_a_network_of_which_nothing_is_trained_runs_as_it_predicts() -> None:
    graph = sequential([*(vertex.layer for vertex in chain().vertices[:3]), layers.Dropout(0.5), layers.Dense(2)])
    roles = assign_roles(request_for(graph, frozen=graph.trainable, input_delta=True))
    assert roles.in_training == (False,) * 5
    assert roles.needs_delta == (True,) * 5
    some = assign_roles(request_for(graph, frozen=("norm/scale", "norm/shift"), input_delta=True))
    assert some.in_training == (True, True, False, True, True)
    bare = sequential([layers.Input(2, 5, 4), layers.Dropout(0.5)])  # Nothing in it could be trained.
    assert assign_roles(request_for(bare, input_delta=True)).in_training == (True, True)


def test_an_activation_is_absorbed_only_where_the_norm_is_trained_and_memory_shared() -> None:
    roles = assign_roles(request_for(chain()))
    assert roles.absorbed == {3: 2}
    assert roles.placements[3].output is Placement.SHARED
    assert [roles.runs_backward(index) for index in range(5)] == [False, True, True, False, True]
    for options in ({"frozen": ("norm/scale", "norm/shift")}, {"share": False}, {"training": False}):
        assert assign_roles(request_for(chain(), **options)).absorbed == {}  # type: ignore[arg-type]


def test_what_the_backward_pass_reads_is_kept() -> None:
    # A convolution reads its input for the gradients of its weights, a norm its own; nobody what the norm gives but
    # the activation, which is one with it, and the dense layer, which reads it through the activation.
    roles = assign_roles(request_for(chain()))
    assert named(roles, roles.kept) == {"images": True, "first": True, "norm": False, "relu": True, "last": False}
    assert not any(assign_roles(request_for(chain(), training=False)).kept)
    # Products whose weights are all frozen read no inputs; before the first that is trained nothing is read at all.
    behind = assign_roles(request_for(chain(), frozen=("last/weight", "last/bias")))
    assert named(behind, behind.kept) == {**named(roles, roles.kept), "relu": False}
    before = assign_roles(request_for(chain(), frozen=("first/weight", "first/bias", "norm/scale", "norm/shift")))
    assert named(before, before.kept) == {**dict.fromkeys(named(before, before.kept), False), "relu": True}
