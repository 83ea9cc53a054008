"""Frames that a fuzzer has a hard time to find (see `tests/fuzz`): bombs, transactions, publishers that are held."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.wire.turn import PARKED_MAX_BYTES
from tests.wire.amqp_peer import Broker, Peer, frame, method, octet, publish, short, short_string, table


def nested(depth: int) -> bytes:
    """A table in a table in a table."""
    body = b""
    for _ in range(depth):
        body = b"\x01aF" + len(body).to_bytes(4, "big") + body
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("depth", [33, 1_000, 10_000])
def test_bombs_of_nested_tables(depth: int) -> None:
    broker = Broker()
    peer = Peer(broker).handshake().channel()
    (answer,) = peer.ask(method(1, 50, 10, short(0) + short_string("q") + octet(0) + nested(depth)))
    assert answer.name == (10, 50)
    assert answer.arguments[:2] == short(502)
    assert "q" not in broker.tenant.queues


@pytest.mark.parametrize("depth", [33, 5_000])
@pytest.mark.parametrize("exchange", ["", "amq.headers"])
def test_bombs_in_headers_are_refused_when_they_are_published(depth: int, exchange: str) -> None:
    broker = Broker()
    peer = Peer(broker).handshake().channel()
    peer.declare("q")
    words = short(0) + short_string("q") + short_string("amq.headers") + b"\x00\x00" + table(a=1)
    assert peer.call(1, 50, 20, words).name == (50, 21)
    (answer,) = peer.ask(publish(1, exchange, "q", b"x", b"\x20\x00" + nested(depth)))
    assert answer.name == (10, 50)
    assert answer.arguments[:2] == short(502)
    assert broker.tenant.queues["q"].ready == 0


frames_ = st.builds(
    frame,
    st.sampled_from([1, 1, 1, 2, 3, 8, 4]),
    st.integers(0, 3),
    st.one_of(
        st.binary(max_size=60),
        st.builds(
            lambda kind, number, rest: short(kind) + short(number) + rest,
            st.sampled_from([10, 20, 30, 40, 50, 60, 85, 90]),
            st.sampled_from([10, 11, 20, 21, 30, 31, 40, 50, 70, 80, 90, 100, 110, 120]),
            st.binary(max_size=40),
        ),
    ),
)


@settings(max_examples=60)
@given(st.lists(st.one_of(frames_, st.just(publish(1, "", "q", b"x"))), max_size=30), st.booleans(), st.booleans())
def test_any_frames_while_publishers_are_held_or_in_a_transaction(parts: list[bytes], held: bool, tx: bool) -> None:
    broker = Broker()
    peer = Peer(broker).handshake(**{"connection.blocked": True}).channel()
    peer.declare("q")
    peer.consume("q")
    if tx:
        peer.call(1, 90, 10)
    if held:
        broker.turn.hold_above(1)
        broker.take_turn(lambda: broker.shard.publish(broker.tenant, "", "q", b"\x00\x00", b"some"))
        broker.take_turn()
    for part in parts:
        peer.send(part)
        assert broker.turn.parked_bytes <= PARKED_MAX_BYTES
    peer.lose()
    assert not broker.log
    assert broker.turn.parked_bytes == 0
    assert not broker.face.connections
    assert broker.tenant.queues["q"].leased == 0 if "q" in broker.tenant.queues else True
