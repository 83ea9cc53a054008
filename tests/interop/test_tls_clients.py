"""Clients over TLS: each checks the server's certificate with its own TLS, and its messages arrive."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import aio_pika
import kombu.pools
import pika
import pytest
import trustme
from kombu.connection import Connection

from tests.interop.celery_client import client_of
from tests.interop.celery_tasks import over_tls
from tests.interop.celery_worker import Worker
from tests.interop.server import serving
from tests.interop.test_amqplib import CLIENT

PATIENCE_SEC = 20
HOST = "localhost"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the authority that certified the server."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.issue_cert(HOST, "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    return folder / "ca.pem"


@pytest.fixture(scope="module")
def port(ca: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    flags = ("--amqp-tls-port", "0", "--http-tls-port", "0", "--tls-cert", str(ca.with_name("server.pem")))
    with serving(tmp_path_factory.mktemp("server"), *flags) as server:
        yield server.port("amqps")
        assert server.stop() == 0


def options(context: ssl.SSLContext) -> pika.SSLOptions:
    return pika.SSLOptions(context, HOST)


@pytest.mark.row("S4-40")
def test_pika(port: int, ca: Path) -> None:
    context = ssl.create_default_context(cafile=ca)
    parameters = pika.ConnectionParameters("127.0.0.1", port, ssl_options=options(context))
    body = os.urandom(1_000_000)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_publish("", queue, body)
        assert channel.basic_get(queue, auto_ack=True)[2] == body


def test_a_client_that_does_not_trust_the_server(port: int) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", port, ssl_options=options(ssl.create_default_context()))
    with pytest.raises(ssl.SSLCertVerificationError):
        pika.BlockingConnection(parameters)


async def test_aio_pika(port: int, ca: Path) -> None:
    context = ssl.create_default_context(cafile=ca)
    url = f"amqps://guest:guest@{HOST}:{port}/"
    async with await aio_pika.connect(url, ssl_context=context) as connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue(exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"hidden"), queue.name)
        assert (await queue.get(timeout=PATIENCE_SEC, no_ack=True)).body == b"hidden"


def test_kombu(port: int, ca: Path) -> None:
    with (
        Connection(f"amqps://guest:guest@{HOST}:{port}//", ssl=over_tls(str(ca))["broker_use_ssl"]) as connection,
        connection.SimpleQueue("over-tls") as queue,
    ):
        queue.put({"secret": 1})
        message = queue.get(timeout=PATIENCE_SEC)
        message.ack()
        assert message.payload == {"secret": 1}


def test_amqp_tools(port: int, ca: Path, need_program: Callable[[str], str]) -> None:
    where = (f"--url=amqps://guest:guest@{HOST}:{port}/%2f", f"--cacert={ca}")

    def run(tool: str, *arguments: str) -> str:
        command = [need_program(f"amqp-{tool}"), *where, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SEC, check=True).stdout

    queue = run("declare-queue", "--queue=tools-over-tls").strip()
    run("publish", f"--routing-key={queue}", "--body=hidden")
    assert run("get", f"--queue={queue}") == "hidden"


def test_amqplib(port: int, ca: Path, amqplib: Path, need_program: Callable[[str], str]) -> None:
    command = [need_program("node"), str(CLIENT), f"amqps://guest:guest@{HOST}:{port}/", "large_body"]
    environ = os.environ | {"NODE_PATH": str(amqplib), "NODE_EXTRA_CA_CERTS": str(ca)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_SEC, check=True)
    assert done.stdout == "true"


def test_celery(port: int, ca: Path, tmp_path: Path) -> None:
    broker = f"amqps://guest:guest@{HOST}:{port}//"
    worker = Worker(tmp_path, "tls", broker, "--without-mingle", ca=ca)
    try:
        with client_of(broker, **over_tls(str(ca))) as client:
            assert client.send_task("add", (2, 3), queue="tls").get(timeout=PATIENCE_SEC) == 5
    finally:
        worker.kill()
        kombu.pools.reset()
