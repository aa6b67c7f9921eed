"""What a file of tunings must be to ship."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from blobnet import layers
from blobnet.device import tuning
from blobnet.examination import layer_cases
from blobnet.hardware.device_model import model_of
from blobnet.launch.kernel_call import Tuning
from blobnet.launch.task import Task, Variant
from blobnet.losses import MeanSquaredError
from blobnet.network.graph import from_nodes
from blobnet.planning import make_plan


def candidates_of(task: Task, settings: Tuning) -> set[Variant]:
    """The ways of a task's candidates, on a device of these settings, behind an input of its own."""
    case = layer_cases.parse(task.layer)
    shape = case.input
    node = layers.Input.of(shape)()
    graph = from_nodes(node, case.layer(node))
    settings = replace(settings, precision=task.precision)
    plan = make_plan(graph, task.batch_size, loss=MeanSquaredError(), training=True, input_delta=True, tuning=settings)
    site = plan.sites[graph.output.name]
    return {candidate.way for candidate in case.layer.alternatives(site).get(task, ())}


def check_shipped(path: Path) -> None:
    """Asserts that a file is whole, has the name of its device, and names candidates that there are."""
    content = json.loads(path.read_text())
    assert path.stem == tuning._slug(content["device"])
    winners = tuning.parse_winners(content)
    assert winners
    assert all(0 < winner.ms <= 1.02 * winner.default_ms for winner in winners.values())
    settings = Tuning(model_of(tuning.answers_in(content)))
    gone = [str(task) for task, winner in winners.items() if winner.candidate not in candidates_of(task, settings)]
    assert not gone, "these candidates have other names now, or are no more: tune the tasks anew"
