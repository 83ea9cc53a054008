"""The server that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.server import ServerProcess, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Ends in order, and no connection of the module's tests met a defect."""
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running
        assert running.stop() == 0
        assert [line for line in running.log if line["event"] == "connection_failed"] == []
