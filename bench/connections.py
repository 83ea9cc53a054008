"""Memory of idle connections: resident bytes of the server for each, over TCP and TLS, on both event loops."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import ssl
import struct
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

import rookery
from bench.harness import start, table, title

AT_ONCE = 64

HOW = """Connections log in, open one channel and then say nothing; the server keeps messages in memory and proposes
heartbeats, which are declined. Its resident memory is read before and after, both times when it no longer changes; the
first 64 connections come before, and pay for what all share. Buffers of the kernel are not in it."""


def method(channel: int, numbers: tuple[int, int], arguments: bytes) -> bytes:
    payload = struct.pack(">HH", *numbers) + arguments
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


WORDS = (
    b"AMQP\x00\x00\x09\x01",
    method(0, (10, 11), b"\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x0c\x00guest\x00guest\x05en_US"),
    method(0, (10, 31), bytes(8)) + method(0, (10, 40), b"\x01/\x00\x00"),
    method(1, (20, 10), b"\x00"),
)
"""What a client says up to its first channel: each but the last is answered by one frame before the next."""


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def settled(pid: int) -> int:
    """Resident bytes once they do not change any more."""
    last = -1
    while (now := resident_bytes(pid)) != last:
        last = now
        await asyncio.sleep(0.5)
    return now


async def connect(port: int, context: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with one channel, as an idle client has it."""
    name = "localhost" if context is not None else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name, limit=4096)
    for part in WORDS:
        writer.write(part)
        size = int.from_bytes((await reader.readexactly(7))[3:], "big")
        await reader.readexactly(size + 1)
    return reader, writer


async def hold(pid: int, port: int, count: int, context: ssl.SSLContext | None) -> float:
    """Bytes per connection, from the difference that `count` of them make."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> asyncio.StreamWriter:
        async with gate:
            return (await connect(port, context))[1]

    # the first ones pay for what all share
    early = await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    before = await settled(pid)
    writers = await asyncio.gather(*(one() for _ in range(count)))
    after = await settled(pid)
    for writer in (*early, *writers):
        writer.transport.abort()
    return (after - before) / count


def serve(folder: Path, loop: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    command = [
        sys.executable,
        "-m",
        "rookery",
        "serve",
        "--host",
        "127.0.0.1",
        "--http-port",
        "off",
        "--amqp-port",
        "0",
        "--line-port",
        "off",
    ]
    command += ["--amqp-tls-port", "0", "--tls-cert", str(folder / "cert.pem"), "--store-backend", "memory"]
    environ = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1])}
    process = subprocess.Popen([*command, "--loop", loop], cwd=folder, env=environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        row = json.loads(line)
        if row["event"] == "listening":
            return process, row
    raise SystemExit("the server did not start")


def main() -> None:
    parser = ArgumentParser(prog="bench/run connections")
    parser.add_argument("--connections", type=int, default=5_000, help="connections to hold (5,000)")
    arguments = start("connections", parser)
    import trustme

    count = arguments.connections
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 1_000), hard))
    rows = []
    for loop in ("uvloop", "asyncio"):
        for kind in ("TCP", "TLS"):
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                authority = trustme.CA()
                authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "cert.pem")
                context = None
                if kind == "TLS":
                    context = ssl.create_default_context()
                    authority.configure_trust(context)
                process, row = serve(folder, loop)
                port = int(row["amqps" if context else "amqp"].rpartition(":")[2])
                try:
                    used = asyncio.run(hold(process.pid, port, count, context))
                finally:
                    process.terminate()
                    process.wait()
                rows.append([f"{kind}, {loop}", f"{used:,.0f}", "10,000" if kind == "TCP" and loop == "uvloop" else ""])
    title(f"Resident bytes of the server per idle connection, {count:,} held", HOW)
    table(["connection", "bytes", "aim"], rows)


if __name__ == "__main__":
    main()
