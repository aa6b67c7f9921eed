"""No kernel file is left out by the tests (conftest.py runs this last)."""

from __future__ import annotations

import pytest

from blobnet.kernel_source import all_kernels, load
from tests.devices import BUILT


def test_every_kernel_was_built(request: pytest.FixtureRequest) -> None:
    config = request.config
    chosen = config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.getoption("keyword")
    if chosen or config.getoption("markexpr") or config.getoption("lf", False):
        pytest.skip("only some of the tests were run")
    missing = {name for name in all_kernels() if load(name).entry not in BUILT}
    assert not missing
