"""`rookery serve` as a process: signals, TLS with real clients, settings from every source, limits of the system."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
import trustme

import rookery
from rookery.config.settings import SETTINGS
from tests.interop.server import ServerProcess, serving
from tests.wire.amqp_peer import PROTOCOL, frames, open_vhost, start_ok, tune_ok

LOOPS = ["uvloop", "asyncio"]


def parameters(server: ServerProcess, face: str = "amqp", **options: Any) -> pika.ConnectionParameters:
    port = int(str(server.listening[face]).rpartition(":")[2])
    return pika.ConnectionParameters("localhost", port, **options)


def count(server: ServerProcess, event: str) -> int:
    return sum(line["event"] == event for line in server.log)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def secure(ca: trustme.CA, name: str = "") -> pika.SSLOptions:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if name:
        ca.issue_cert(f"{name}@shop.example", common_name=name).configure_cert(context)
    return pika.SSLOptions(context, "localhost")


@pytest.mark.row("S4-40")
@pytest.mark.parametrize("loop", LOOPS)
def test_amqp_over_tls_and_a_new_certificate_by_sighup(tmp_path: Path, ca: trustme.CA, loop: str) -> None:
    cert = tmp_path / "cert.pem"
    ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(cert)
    flags = ("--amqp-tls-port", "0", "--http-tls-port", "0", "--tls-cert", str(cert), "--loop", loop)
    with serving(tmp_path, *flags) as server:
        assert server.listening["loop"] == loop
        connection = pika.BlockingConnection(parameters(server, "amqps", ssl_options=secure(ca)))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        body = os.urandom(1_000_000)
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
        cert.write_text("not yet complete")
        server.signal(signal.SIGHUP)
        assert "not reloaded: ROOKERY_TLS_CERT" in str(server.until("certificates")["text"])
        pika.BlockingConnection(parameters(server, "amqps", ssl_options=secure(ca))).close()
        another = trustme.CA()
        another.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(cert)
        server.signal(signal.SIGHUP)
        until(lambda: any(line.get("text") == "reloaded" for line in server.log))
        with pytest.raises(ssl.SSLCertVerificationError):
            pika.BlockingConnection(parameters(server, "amqps", ssl_options=secure(ca)))
        pika.BlockingConnection(parameters(server, "amqps", ssl_options=secure(another))).close()
        assert channel.basic_get("q", auto_ack=True)[2] == body
        connection.close()
        context = ssl.create_default_context()
        another.configure_trust(context)
        port = int(str(server.listening["https"]).rpartition(":")[2])
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost") as https:
            https.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert https.recv(4096).startswith(b"HTTP/1.1 200 OK")
        assert server.stop() == 0


def test_a_changed_certificate_is_found_without_a_signal(tmp_path: Path, ca: trustme.CA) -> None:
    cert = tmp_path / "cert.pem"
    ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(cert)
    with serving(tmp_path, "--amqp-tls-port", "0", "--tls-cert", str(cert)) as server:
        another = trustme.CA()
        new = tmp_path / "new.pem"
        another.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(new)
        new.rename(cert)
        assert server.until("certificates")["text"] == "reloaded"
        pika.BlockingConnection(parameters(server, "amqps", ssl_options=secure(another))).close()


def test_bad_certificates_stop_the_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rookery", "serve", "--host", "127.0.0.1", "--tls-cert", "missing.pem"]
    environ = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1])}
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 1
    assert f"ROOKERY_TLS_CERT: {tmp_path / 'missing.pem'} cannot be read" in result.stderr
    assert not (tmp_path / "rookery-data").exists()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_in_order(tmp_path: Path, loop: str, number: signal.Signals) -> None:
    with serving(tmp_path, "--loop", loop) as server:
        connection = pika.BlockingConnection(parameters(server))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        # neither confirmed nor answered: written when the server stops all the same
        for n in range(100):
            channel.basic_publish("", "q", b"%d" % n, pika.BasicProperties(delivery_mode=2))
        channel.queue_declare("q", durable=True, passive=True)
        server.signal(number)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as told:
            while True:
                connection.process_data_events(time_limit=30)
        assert told.value.reply_code == 320
        assert "CONNECTION_FORCED" in told.value.reply_text
        assert server.wait() == 0
    with serving(tmp_path) as server:
        connection = pika.BlockingConnection(parameters(server))
        assert connection.channel().queue_declare("q", durable=True, passive=True).method.message_count == 100
        connection.close()


def test_the_second_signal_does_not_wait_for_peers(tmp_path: Path) -> None:
    with serving(tmp_path, "--shutdown-sec", "3600") as server:
        with socket.create_connection(("127.0.0.1", server.amqp)) as deaf:
            deaf.sendall(PROTOCOL + start_ok() + tune_ok() + open_vhost())
            while not any(each.kind == 1 and each.name == (10, 41) for each in frames(deaf.recv(4096))):
                pass
            server.signal(signal.SIGTERM)
            server.until("stopping")
            assert server.process.poll() is None
            server.signal(signal.SIGTERM)
            assert server.wait() == 1
        assert server.until("stopped")["how"] == "at once"


@pytest.mark.parametrize("loop", LOOPS)
def test_more_peers_than_file_descriptors(tmp_path: Path, loop: str) -> None:
    """Peers that do not fit wait in the backlog; the server neither ends nor turns in circles."""
    with serving(tmp_path, "--loop", loop, "--store-backend", "memory") as server:
        pid = server.process.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 10, used + 10))
        first = [socket.create_connection(("127.0.0.1", server.amqp)) for _ in range(30)]
        server.until("accept_paused")
        before = cpu_sec(pid)
        late = socket.create_connection(("127.0.0.1", server.amqp))
        late.sendall(PROTOCOL)
        until(lambda: count(server, "accept_paused") >= 3)
        assert cpu_sec(pid) - before < 0.5
        for peer in first:
            peer.close()
        late.settimeout(30)
        assert late.recv(1) == b"\x01"
        late.close()


def cpu_sec(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_consumer_that_never_reads_stalls_nobody(tmp_path: Path, loop: str) -> None:
    with serving(tmp_path, "--loop", loop, "--store-backend", "memory") as server:
        connection = pika.BlockingConnection(parameters(server))
        channel = connection.channel()
        channel.queue_declare("slow")
        channel.queue_declare("quick")
        deaf = socket.create_connection(("127.0.0.1", server.amqp))
        deaf.sendall(PROTOCOL + start_ok() + tune_ok() + open_vhost() + channel_and_consumer("slow"))
        until(lambda: channel.queue_declare("slow", passive=True).method.consumer_count == 1)
        channel.confirm_delivery()
        body = bytes(100_000)
        for _ in range(400):
            channel.basic_publish("", "slow", body)
            channel.basic_publish("", "quick", b"x")
            assert channel.basic_get("quick", auto_ack=True)[2] == b"x"
        # what the sockets and the one buffer take is little; the rest is still the queue's
        assert channel.queue_declare("slow", passive=True).method.message_count > 200
        deaf.close()
        connection.close()


def channel_and_consumer(queue: str) -> bytes:
    def method(numbers: tuple[int, int], arguments: bytes) -> bytes:
        payload = struct.pack(">HH", *numbers) + arguments
        return struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"

    name = bytes([len(queue)]) + queue.encode()
    return method((20, 10), b"\x00") + method((60, 20), b"\x00\x00" + name + b"\x00" + b"\x02" + bytes(4))


def test_failed_logins_are_refused_after_a_while(tmp_path: Path) -> None:
    with serving(tmp_path, "--login-failures-max", "3", "--store-backend", "memory") as server:
        wrong = pika.PlainCredentials("guest", "wrong")
        for _ in range(5):
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                pika.BlockingConnection(parameters(server, credentials=wrong))
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            pika.BlockingConnection(parameters(server))
        assert server.until("logins_refused")["user"] == "guest"
        assert count(server, "login_failed") == 3
        assert server.until("login_failed")["peer"] in ("127.0.0.1", "::1")
        assert "wrong" not in json.dumps(server.log)


def test_behind_a_proxy_guest_is_not_on_this_machine(tmp_path: Path) -> None:
    with serving(tmp_path, "--proxy-protocol", "amqp", "--store-backend", "memory") as server:
        for source, welcome in (("127.0.0.1", True), ("192.0.2.7", False)):
            with socket.create_connection(("127.0.0.1", server.amqp)) as peer:
                peer.settimeout(30)
                peer.sendall(f"PROXY TCP4 {source} 127.0.0.1 1 2\r\n".encode() + PROTOCOL + start_ok())
                got = b""
                while chunk := peer.recv(4096):
                    got += chunk
                    if got.count(b"\xce") >= 2 and welcome:
                        break
                assert [each.name for each in frames(got)] == [(10, 10), *([(10, 30)] if welcome else [])]
        assert server.until("login_failed")["peer"] == "192.0.2.7"


def test_a_peer_that_says_nothing_is_dropped(tmp_path: Path) -> None:
    with serving(tmp_path, "--store-backend", "memory", "--handshake-sec", "0.5") as server:
        with socket.create_connection(("127.0.0.1", server.amqp)) as silent:
            silent.settimeout(30)
            assert silent.recv(1) == b""
        pika.BlockingConnection(parameters(server)).close()


@pytest.mark.row("S3-10")
def test_ports_and_timeouts_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    ports = {setting.field for setting in SETTINGS if setting.field.endswith("port")}
    times = {setting.field for setting in SETTINGS if setting.field.endswith(("_sec", "_ms"))}
    assert {"http_port", "amqp_port", "amqp_tls_port", "line_port", "line_tls_port"} <= ports
    assert {"handshake_sec", "heartbeat_sec", "shutdown_sec", "visibility_timeout_sec"} <= times
    free = []
    for _ in range(2):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            free.append(sock.getsockname()[1])
    (tmp_path / "rookery.toml").write_text(
        f'[server]\nhost = "127.0.0.1"\nshutdown_sec = 0.5\n[http]\nport = {free[0]}\n[amqp]\nheartbeat_sec = 7\n'
        '[store]\nbackend = "memory"\n[limits]\nhandshake_sec = 0.5\n'
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ROOKERY_")}
    environ |= {"PYTHONPATH": str(Path(rookery.__file__).parents[1]), "ROOKERY_AMQP_PORT": str(free[1])}
    environ["ROOKERY_LINE_PORT"] = "0"
    command = [sys.executable, "-m", "rookery", "serve"]
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        row = next(row for row in map(json.loads, process.stderr) if row["event"] == "listening")
        assert (row["http"], row["amqp"]) == (f"127.0.0.1:{free[0]}", f"127.0.0.1:{free[1]}")
        with socket.create_connection(("127.0.0.1", free[1])) as silent:
            silent.settimeout(30)
            assert silent.recv(1) == b""  # the handshake's time was up
        with socket.create_connection(("127.0.0.1", free[1])) as peer:
            peer.sendall(PROTOCOL + start_ok())
            got = b""
            while got.count(b"\xce") < 2:
                got += peer.recv(4096)
            tune = list(frames(got))[1]
            assert struct.unpack(">HIH", tune.arguments)[2] == 7
            process.terminate()
            assert process.wait(30) == 0
