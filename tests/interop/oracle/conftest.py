"""Both brokers, started once for all scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.interop.oracle.brokers import rabbitmq
from tests.interop.oracle.scenario import Brokers
from tests.interop.server import serving


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]) -> Iterator[Brokers]:
    program = need_program("rabbitmq-server")
    with (
        serving(tmp_path_factory.mktemp("rookery")) as rookery,
        rabbitmq(tmp_path_factory.mktemp("rabbitmq"), program) as port,
    ):
        yield Brokers(rabbitmq=port, rookery=rookery.amqp)
        assert rookery.stop() == 0
        assert [line for line in rookery.log if line["event"] == "connection_failed"] == []
