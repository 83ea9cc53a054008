"""A bounded run of atheris over an AMQP connection: `python -m tests.wire.fuzz_amqp -runs=20000 -max_len=4096`.

Whatever the bytes are, the connection neither fails by a defect of its own nor leaves anything behind.
"""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

with atheris.instrument_imports(include=["rookery.wire", "rookery.fieldtables", "rookery.properties"]):
    from rookery.wire import amqp  # noqa: F401
    from tests.wire.amqp_peer import PROTOCOL, Broker, Peer, open_vhost, start_ok, tune_ok

OPENED = PROTOCOL + start_ok() + tune_ok() + open_vhost() + b"\x01\x00\x01\x00\x00\x00\x05\x00\x14\x00\x0a\x00\xce"


def one(data: bytes) -> None:
    broker = Broker()
    peer = Peer(broker)
    at = data[0] if data else 0
    if at & 1:
        peer.send(OPENED)
    step = 1 + (at >> 1)
    for start in range(1, len(data), step):
        peer.send(data[start : start + step])
    peer.lose()
    assert not [event for event, _ in broker.log if event == "connection_failed"]
    assert not broker.face.connections
    assert broker.face.partial_bytes == 0
    assert broker.turn.parked_bytes == 0


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
