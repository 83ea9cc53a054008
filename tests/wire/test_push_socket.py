"""Queues, topics and streams over a WebSocket, by a stock client library and by bytes."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from rookery.clock import ManualClock
from rookery.format import properties
from rookery.wire import websocket
from rookery.wire.push.socket import ANSWERS_MAX, DEAD_MS, HEARTBEAT_MS
from rookery.wire.push.sources import LINGER_MS, UNCONFIRMED_MAX
from rookery.wire.websocket import CLOSE, PING, PONG, TEXT
from tests.wire.http_world import ADMIN, World, world
from tests.wire.socket_reader import SocketReader

QUEUES = "/api/v1/queues"
TOPICS = "/api/v1/topics"
STREAMS = "/api/v1/streams"
PROPS = properties.encode(properties.Properties())
HANDSHAKE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(b"0123456789abcdef").decode(),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def web(tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    with world(tmp_path, clock) as made:
        yield made


def reading(web: World, path: str, **more: Any) -> SocketReader:
    return SocketReader(web.address, path, **more)


def publish(web: World, path: str, *messages: Any, **more: Any) -> None:
    for message in messages:
        answer = web.admin.post(f"{path}/publish", json={"message": message, **more})
        assert answer.status_code in (200, 201), answer.text


def fill(web: World, queue: str, bodies: list[bytes]) -> None:
    def work(server: Any) -> None:
        shard = server.engine.shard
        for body in bodies:
            shard.publish(shard.tenants["default"], "", queue, PROPS, body)

    assert web.admin.put(f"{QUEUES}/{queue}").status_code in (200, 201)
    web.inside(work)


def stats(web: World, queue: str) -> Any:
    return web.admin.get(f"{QUEUES}/{queue}/stats").json()


def until(web: World, condition: Any) -> None:
    for _ in range(6_000):
        if web.inside(condition):
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen")


def nobody_reads(server: Any) -> bool:
    return not server._web.readers.readers


def pass_time(web: World, clock: ManualClock, milliseconds: int) -> None:
    clock.advance(milliseconds)
    web.inside(lambda server: server._web.readers.tick())


class RawSocket:
    """The client's side of a WebSocket, in bytes."""

    def __init__(self, web: World, path: str, tail: bytes = b"") -> None:
        self.sock = socket.create_connection(("127.0.0.1", web.port), 60)
        lines = [f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {ADMIN}"]
        lines += [f"{name}: {value}" for name, value in HANDSHAKE.items()]
        self.sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + tail)
        self._file = self.sock.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        while self._file.readline() not in (b"\r\n", b""):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        self.sock.close()

    @staticmethod
    def frame(opcode: int, payload: bytes = b"", first: int = 0x80) -> bytes:
        n = len(payload)
        size = b"\xff" + n.to_bytes(8, "big")
        if n < 65536:
            size = bytes([n | 0x80]) if n < 126 else b"\xfe" + n.to_bytes(2, "big")
        key = b"\x37\xfa\x21\x3d"
        return bytes([first | opcode]) + size + key + websocket.unmask(payload, key)

    def send(self, opcode: int, payload: bytes = b"") -> None:
        self.sock.sendall(self.frame(opcode, payload))

    def ask(self, **request: Any) -> None:
        self.send(int(TEXT), json.dumps(request).encode())

    def read(self) -> tuple[int, bytes]:
        """The next frame; a broken connection is an opcode of -1."""
        try:
            head = self._file.read(2)
        except ConnectionResetError:
            head = b""
        if len(head) < 2:
            return -1, b""
        size = head[1]
        if size == 126:
            size = int.from_bytes(self._file.read(2), "big")
        elif size == 127:
            size = int.from_bytes(self._file.read(8), "big")
        return head[0] & 0x0F, self._file.read(size)

    def until(self, opcode: int) -> bytes:
        while True:
            found, payload = self.read()
            if found == opcode:
                return payload
            assert found != -1, "the connection broke"


# Queues


@pytest.mark.row("S2-43")
def test_a_queue_s_messages_arrive_many_in_a_frame_and_at_once(web: World) -> None:
    publish(web, f"{QUEUES}/q", *range(50))
    with reading(web, f"{QUEUES}/q") as reader:
        assert reader.bodies(50) == list(range(50))
        assert reader.frames == 1
        publish(web, f"{QUEUES}/q", {"n": 50})
        found = reader.next()
        assert found["message"] == {"n": 50}
        assert found["attempt"] == 1
        assert "lease" not in found


@pytest.mark.row("S2-43")
def test_credit_bounds_what_is_out_and_acks_make_room(web: World) -> None:
    publish(web, f"{QUEUES}/q", *range(6))
    with reading(web, f"{QUEUES}/q", ack="explicit", credit=2) as reader:
        first, second = reader.take(2)
        assert stats(web, "q")["in_flight"] == 2
        assert reader.ask("settle", leases=[first["lease"], second["lease"]]) == {"settled": 2, "lost": []}
        assert stats(web, "q")["acked"] == 2
        assert reader.bodies(2) == [2, 3]
        assert reader.ask("credit", credit=3) == {"credit": 3}
        assert reader.bodies(1) == [4]
        assert reader.ask("ack", through=reader.last_id) == {"acked": 3}
        assert reader.bodies(1) == [5]


def test_each_message_can_have_an_outcome_of_its_own(web: World) -> None:
    publish(web, f"{QUEUES}/q", *range(5))
    with reading(web, f"{QUEUES}/q", ack="explicit") as reader:
        leases = [found["lease"] for found in reader.take(5)]
        settle = [
            {"lease": leases[0]},
            {"lease": leases[1], "outcome": "retry", "delay_ms": 0, "reason": "busy"},
            {"lease": leases[2], "outcome": "release"},
            {"lease": leases[3], "outcome": "reject", "reason": "broken"},
            {"lease": "q/99/1/1"},
        ]
        assert reader.ask("settle", settle=settle) == {"settled": 4, "lost": ["q/99/1/1"]}
        again = sorted((found["message"], found["attempt"], found["redelivered"]) for found in reader.take(2))
        assert again == [(1, 2, True), (2, 1, True)]
    found = stats(web, "q")
    assert (found["acked"], found["dlq_size"], found["in_flight"]) == (1, 1, 3)


def test_leases_last_as_long_as_is_said_and_can_be_extended(web: World, clock: ManualClock) -> None:
    publish(web, f"{QUEUES}/q", 1)
    with reading(web, f"{QUEUES}/q", ack="explicit", lease_ms=1_000) as reader:
        lease = reader.next()["lease"]
        assert reader.ask("extend", leases=[lease, "q/9/9/9"], lease_ms=5_000) == {"extended": 1, "lost": ["q/9/9/9"]}
        clock.advance(4_999)
        assert stats(web, "q")["in_flight"] == 1
        clock.advance(1)
        assert reader.next()["attempt"] == 2
        assert reader.ask("settle", leases=[lease]) == {"settled": 0, "lost": [lease]}


def test_messages_can_be_published_and_come_back(web: World) -> None:
    with reading(web, f"{QUEUES}/q") as reader:
        many = [{"message": n, "headers": {"n": n}} for n in range(3)]
        answer = reader.ask("publish", messages=many)
        assert answer["count"] == 3
        found = reader.take(3)
        assert [each["message_id"] for each in found] == [each["message_id"] for each in answer["messages"]]
        assert [each["headers"] for each in found] == [{"n": 0}, {"n": 1}, {"n": 2}]
        plain = reader.ask("publish", messages=[{"message": n} for n in range(3)])
        assert plain["count"] == 3
        assert [each["message_id"] for each in reader.take(3)] == [each["message_id"] for each in plain["messages"]]
        first = reader.ask("publish", messages={"message": "one", "idempotency_key": "k"})
        again = reader.ask("publish", messages={"message": "one", "idempotency_key": "k"})
        assert again == {**first, "duplicate": True}
        assert reader.bodies(1) == ["one"]


def test_a_message_looks_as_a_claim_shows_it(web: World) -> None:
    bodies: list[dict[str, Any]] = [
        {"message": {"a": [1, 2.5, None, "ä"]}},
        {"message": "text", "priority": 3, "headers": {"x": "y", "n": [1, {"z": True}]}, "correlation_id": "c"},
        {"message_base64": base64.b64encode(b"\xff\x00").decode(), "content_type": "image/png", "type": "t"},
        {"message_base64": base64.b64encode(b'{"broken"').decode(), "content_type": "application/json"},
        {"message_base64": base64.b64encode(b'{"a":"\xff"}').decode(), "content_type": "application/json"},
        {"message": 1, "message_id": 'an "id"', "reply_to": "r", "ttl_ms": 3_600_000},
        {"message": 2, "group": "g", "delay_ms": 0},
    ]
    for body in bodies:
        answer = web.admin.post(f"{QUEUES}/q ö/messages", json=body)
        assert answer.status_code == 201, answer.text
    claimed: list[Any] = []
    for _ in range(2):
        claimed = web.admin.post(f"{QUEUES}/q ö/claim", json={"max": 10}).json()["deliveries"]
        assert len(claimed) == len(bodies)
        every = [{"lease": each["lease"], "outcome": "release"} for each in claimed]
        assert web.admin.post(f"{QUEUES}/q ö/settle", json={"settle": every}).status_code == 200
    with reading(web, f"{QUEUES}/q%20%C3%B6", ack="explicit") as reader:
        pushed = reader.take(len(bodies))
    for mine, theirs in zip(pushed, claimed, strict=True):
        ours, other = mine.pop("lease"), theirs.pop("lease")
        assert ours.rsplit("/", 1)[0] == other.rsplit("/", 1)[0]
        assert mine == theirs


def test_the_deaths_of_a_dead_letter_are_told(web: World) -> None:
    publish(web, f"{QUEUES}/q", 1)
    lease = web.admin.post(f"{QUEUES}/q/claim").json()["deliveries"][0]["lease"]
    assert web.admin.post(f"{QUEUES}/q/settle", json={"leases": [lease], "outcome": "reject"}).status_code == 200
    with reading(web, f"{QUEUES}/q.DLQ") as reader:
        death = reader.next()["deaths"][0]
        assert (death["queue"], death["reason"]) == ("q", "rejected")


# Coming back


@pytest.mark.row("S2-43")
def test_a_reader_that_comes_back_goes_on_behind_the_last_message_it_knows(web: World) -> None:
    publish(web, f"{QUEUES}/q", 1)
    with reading(web, f"{QUEUES}/q") as reader:
        assert reader.bodies(1) == [1]
        seen = reader.last_id
        publish(web, f"{QUEUES}/q", 2)
        assert reader.bodies(1) == [2]
    until(web, nobody_reads)
    publish(web, f"{QUEUES}/q", 3)
    with reading(web, f"{QUEUES}/q", after=seen) as reader:
        # 2 was sent, but whoever asks does not know of it
        assert reader.bodies(2) == [2, 3]
    assert stats(web, "q")["acked"] == 1


def test_it_may_come_back_before_its_old_connection_is_known_to_be_gone(web: World) -> None:
    publish(web, f"{QUEUES}/q", 1)
    with reading(web, f"{QUEUES}/q", ack="explicit") as old:
        lease = old.next()["lease"]
        with reading(web, f"{QUEUES}/q", ack="explicit", after=old.last_id) as new:
            assert old.close_code() == (1000, "continued by another connection")
            assert new.ask("settle", leases=[lease]) == {"settled": 1, "lost": []}
            publish(web, f"{QUEUES}/q", 2)
            assert new.bodies(1) == [2]


def test_what_a_reader_has_not_acked_comes_again(web: World, clock: ManualClock) -> None:
    publish(web, f"{QUEUES}/q", 1, 2)
    with reading(web, f"{QUEUES}/q", ack="explicit") as reader:
        first, _ = reader.take(2)
        reader.ask("settle", leases=[first["lease"]])
    until(web, nobody_reads)
    pass_time(web, clock, 30_000)
    with reading(web, f"{QUEUES}/q") as reader:
        found = reader.next()
        assert (found["message"], found["attempt"]) == (2, 2)
    until(web, nobody_reads)
    pass_time(web, clock, int(LINGER_MS) + 1)
    assert (stats(web, "q")["acked"], stats(web, "q")["ready"]) == (1, 1)


def test_a_pong_says_that_what_was_sent_has_arrived(web: World, clock: ManualClock) -> None:
    publish(web, f"{QUEUES}/q", 1, 2)
    with RawSocket(web, f"{QUEUES}/q/stream") as raw:
        raw.until(int(TEXT))
        pass_time(web, clock, 1_000)
        asked = raw.until(int(PING))
        assert asked == b"2"
        pass_time(web, clock, 10_000)
        assert stats(web, "q")["acked"] == 0
        for wrong in (b"", b"x", b"3", b"9" * 30, b"-1"):
            raw.send(int(PONG), wrong)
        raw.send(int(PONG), b"1")
        until(web, lambda server: server.engine.shard.tenants["default"].queues["q"].acked == 1)
        raw.send(int(PONG), asked)
        until(web, lambda server: server.engine.shard.tenants["default"].queues["q"].acked == 2)


def test_without_explicit_acks_no_more_is_out_than_a_window(web: World) -> None:
    fill(web, "q", [b"x"] * (int(UNCONFIRMED_MAX) * 3))
    with RawSocket(web, f"{QUEUES}/q/stream") as raw:
        asked = raw.until(int(PING))
        assert stats(web, "q")["in_flight"] == UNCONFIRMED_MAX
        raw.send(int(PONG), asked)
        until(web, lambda server: server.engine.shard.tenants["default"].queues["q"].ready < UNCONFIRMED_MAX * 2)
    with reading(web, f"{QUEUES}/other", after="nothing:1") as reader:
        fill(web, "other", [b"y"] * 5_000)
        assert len(reader.take(5_000)) == 5_000


# Topics and streams


@pytest.mark.row("S2-43")
def test_a_topic_s_messages_arrive_and_wait_for_a_reader_that_comes_back(web: World) -> None:
    with reading(web, f"{TOPICS}/orders", routing_key="eu.*") as reader:
        publish(web, f"{TOPICS}/orders", "no", routing_key="us.1")
        publish(web, f"{TOPICS}/orders", "yes", routing_key="eu.1")
        found = reader.next()
        assert (found["message"], found["routing_key"], found["exchange"]) == ("yes", "eu.1", "orders")
        assert reader.ask("publish", messages=[{"message": 2, "routing_key": "eu.2"}])["count"] == 1
        assert reader.bodies(1) == [2]
        seen = reader.last_id
    until(web, nobody_reads)
    publish(web, f"{TOPICS}/orders", "meanwhile", routing_key="eu.3")
    with reading(web, f"{TOPICS}/orders", after=seen) as reader:
        assert reader.bodies(1) == ["meanwhile"]


def test_an_existing_subscription_is_read_with_acks(web: World) -> None:
    made = web.admin.post(f"{TOPICS}/t/subscriptions", json={"mode": "pull"}).json()
    publish(web, f"{TOPICS}/t", 1)
    with reading(web, f"{TOPICS}/t", subscription=made["subscription_id"], ack="explicit") as reader:
        assert reader.ask("settle", leases=[reader.next()["lease"]]) == {"settled": 1, "lost": []}
    assert stats(web, made["queue"])["acked"] == 1


def records(web: World, count: int, partitions: int = 1) -> None:
    web.admin.put(f"{STREAMS}/s", json={"partitions": partitions})
    body = [{"message": n, "partition": n % partitions} for n in range(count)]
    assert web.admin.post(f"{STREAMS}/s/publish", json=body).status_code == 201


@pytest.mark.row("S2-43")
def test_a_stream_s_records_come_from_an_offset_and_a_reader_goes_on_behind_it(web: World) -> None:
    records(web, 6)
    with reading(web, f"{STREAMS}/s", from_="2") as reader:
        found = reader.take(4)
        assert [(each["offset"], each["message"]) for each in found] == [(2, 2), (3, 3), (4, 4), (5, 5)]
        assert reader.last_id == "5"
        assert reader.ask("publish", messages={"message": "new"}) == {"partition": 0, "offset": 6}
        assert reader.bodies(1) == ["new"]
    with reading(web, f"{STREAMS}/s", after="4") as reader:
        assert [each["offset"] for each in reader.take(2)] == [5, 6]


def test_credit_on_a_stream_is_given_back_by_acks(web: World) -> None:
    records(web, 12, partitions=2)
    with reading(web, f"{STREAMS}/s", from_="first", credit=4) as reader:
        found = reader.take(4)
        assert reader.ask("ack", through=reader.last_id) == {"acked": 4}
        found += reader.take(4)
        one = found[-1]
        acked = reader.ask("ack", through=f"{one['partition']}:{one['offset']}")["acked"]
        assert acked >= 1
        found += reader.take(acked)
        assert reader.ask("credit", credit=100) == {"credit": 100}
        found += reader.take(12 - len(found))
    assert sorted(each["message"] for each in found) == list(range(12))


def test_a_long_stream_is_read_as_fast_as_its_reader_reads(web: World) -> None:
    records(web, 5_000)
    with reading(web, f"{STREAMS}/s", from_="first") as reader:
        assert [each["offset"] for each in reader.take(5_000)] == list(range(5_000))
    until(web, nobody_reads)
    assert web.inside(lambda server: server.engine.shard.feeds) == []
    assert web.inside(lambda server: server.engine.shard.tenants["default"].subscriptions) == 0


@pytest.mark.row("S2-43")
def test_a_group_goes_on_where_it_was(web: World) -> None:
    records(web, 4)
    with reading(web, f"{STREAMS}/s", group="g", from_="first") as reader:
        assert reader.bodies(4) == [0, 1, 2, 3]
        assert reader.ask("ack", through="1") == {"acked": 2}
    until(web, nobody_reads)
    assert web.admin.get(f"{STREAMS}/s/groups/g").json()["lag"] == 2
    with reading(web, f"{STREAMS}/s", group="g") as reader:
        assert reader.bodies(2) == [2, 3]


def test_members_share_the_partitions_and_take_over_from_one_that_left(web: World, clock: ManualClock) -> None:
    records(web, 10, partitions=2)
    with reading(web, f"{STREAMS}/s", group="g", from_="first", member="a") as a:
        assert len(a.take(10)) == 10
        a.ask("ack", through=a.last_id)
        with reading(web, f"{STREAMS}/s", group="g", member="b") as b:
            pass_time(web, clock, 1_000)
            assert web.admin.get(f"{STREAMS}/s/groups/g").json()["members"] == {"a": [0], "b": [1]}
            records(web, 2, partitions=2)
            assert (a.next()["partition"], b.next()["partition"]) == (0, 1)
        until(web, lambda server: len(server._web.readers.readers) == 1)
        pass_time(web, clock, 1_000)
        # b had not acked what it was sent
        assert a.next()["partition"] == 1
        with reading(web, f"{STREAMS}/s", group="g", member="a") as again:
            assert a.close_code() == (1000, "continued by another connection")
            assert sorted(found["partition"] for found in again.take(2)) == [0, 1]


def test_a_group_without_a_place_begins_where_it_first_joined(web: World) -> None:
    records(web, 3)
    with reading(web, f"{STREAMS}/s", group="g") as reader:
        reader.ask("credit", credit=10)
    until(web, nobody_reads)
    records(web, 1)
    with reading(web, f"{STREAMS}/s", group="g") as reader:
        assert reader.next()["offset"] == 3


def test_sealed_records_are_read_with_credit_too(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with world(tmp_path, store_backend="journal") as web:
        records(web, 300)
        answer = web.admin.post(f"{STREAMS}/s/seal", timeout=120)
        assert answer.status_code == 200, answer.text
        records(web, 10)
        with reading(web, f"{STREAMS}/s", from_="first", credit=50) as reader:
            offsets: list[int] = []
            while len(offsets) < 310:
                offsets.append(reader.next()["offset"])
                if len(offsets) % 50 == 0:
                    reader.send("ack", through=str(offsets[-1]))
            assert offsets == list(range(310))


# Requests that make no sense


def test_what_cannot_be_done_is_told_and_changes_nothing(web: World) -> None:
    publish(web, f"{QUEUES}/q", 1)
    with reading(web, f"{QUEUES}/q", ack="explicit") as reader:
        lease = reader.next()["lease"]
        for request, argument in (
            ("nonsense", "body"),
            ("[]", "body"),
            ("{}", "body"),
            ('{"op":"fly"}', "op"),
            ('{"op":"ack"}', "body"),
            ('{"op":"ack","through":"x","more":1}', "body"),
            ('{"op":"ack","through":"someone:1"}', "through"),
            ('{"op":"credit","credit":0}', "credit"),
            ('{"op":"credit","credit":1001}', "credit"),
            ('{"op":"settle","leases":[1]}', "leases[0]"),
            ('{"op":"publish","messages":[]}', "body"),
            ('{"op":"publish","messages":[{"message":1,"ttl_ms":0}]}', "[0].ttl_ms"),
            ('{"op":"publish"}', "body"),
        ):
            reader.link.send(request)
            found = reader.answer()
            assert found["type"] == "error", request
            assert found["error"]["code"] == "invalid_argument", found
            assert found["error"].get("argument") == argument, (request, found)
        reader.link.send('{"op":"fly","ref":7}')
        assert reader.answer()["ref"] == 7
        assert reader.ask("settle", leases=[lease]) == {"settled": 1, "lost": []}
    with reading(web, f"{QUEUES}/q") as reader:
        assert reader.ask("credit", credit=5)["argument"] == "credit"
    records(web, 1)
    with reading(web, f"{STREAMS}/s") as reader:
        assert reader.ask("settle", leases=["x"])["argument"] == "op"
        assert reader.ask("ack", through="5")["argument"] == "through"
    assert stats(web, "q")["published"] == 1


def test_requests_may_come_with_the_handshake_and_in_pieces(web: World) -> None:
    first = RawSocket.frame(int(TEXT), b'{"op":"publish","messages":{"message":1},"ref":1}')
    with RawSocket(web, f"{QUEUES}/q/stream", first) as raw:
        assert raw.status == 101
        found = [json.loads(raw.until(int(TEXT))) for _ in range(2)]
        assert {each["type"] for each in found} == {"done", "messages"}
        text = b'{"op":"publish","messages":{"message":2},"ref":2}'
        pieces = RawSocket.frame(1, text[:10], 0) + RawSocket.frame(9, b"!") + RawSocket.frame(0, text[10:])
        for at in range(len(pieces)):
            raw.sock.sendall(pieces[at : at + 1])
        assert raw.until(int(PONG)) == b"!"
        assert {json.loads(raw.until(int(TEXT)))["type"] for _ in range(2)} == {"done", "messages"}


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x01x", 1002),
        (RawSocket.frame(3, b"x"), 1002),
        (RawSocket.frame(1, b"\xff"), 1007),
        (RawSocket.frame(2, b"x"), 1003),
        (b"\x81\xff" + (1 << 30).to_bytes(8, "big") + b"mask", 1009),
        (RawSocket.frame(8, b"\x03\xe8"), 1000),
        (RawSocket.frame(8, b"\x0f\xa0bye"), 4000),
        (RawSocket.frame(8), 1000),
    ],
)
def test_the_connection_is_closed_with_a_code(web: World, data: bytes, code: int) -> None:
    with RawSocket(web, f"{QUEUES}/q/stream") as raw:
        raw.sock.sendall(data)
        assert websocket.read_close(raw.until(int(CLOSE)))[0] == code
        raw.send(int(CLOSE), code.to_bytes(2, "big"))
        assert raw.read()[0] == -1
    until(web, nobody_reads)
    assert web.inside(lambda server: server._web.face.body_bytes) == 0


def test_a_peer_that_goes_in_the_middle_of_a_frame_leaves_nothing(web: World) -> None:
    with RawSocket(web, f"{QUEUES}/q/stream") as raw:
        raw.sock.sendall(RawSocket.frame(1, b"x" * 100_000)[:50_000])
        until(web, lambda server: server._web.face.body_bytes == 50_000)
    until(web, nobody_reads)
    assert web.inside(lambda server: server._web.face.body_bytes) == 0
    assert stats(web, "q")["consumers"] == 0


# Time


def test_a_silent_peer_is_pinged_and_a_dead_one_dropped(web: World, clock: ManualClock) -> None:
    with RawSocket(web, f"{QUEUES}/q/stream") as raw:
        pass_time(web, clock, int(HEARTBEAT_MS) - 1)
        pass_time(web, clock, 1)
        assert raw.read() == (PING, b"0")
        raw.send(int(PONG), b"0")
        # so that the pong was read too
        raw.ask(op="publish", messages=[], ref=1)
        raw.until(int(TEXT))
        pass_time(web, clock, int(HEARTBEAT_MS))
        assert raw.read()[0] == PING
        pass_time(web, clock, int(DEAD_MS - HEARTBEAT_MS))
        while raw.read()[0] != -1:
            pass
    until(web, nobody_reads)


def test_a_peer_that_does_not_agree_to_close_is_dropped(web: World, clock: ManualClock) -> None:
    with RawSocket(web, f"{QUEUES}/q/stream") as raw:
        web.inside(lambda server: server.engine.shard.tenants["default"].delete_queue("q"))
        assert websocket.read_close(raw.until(int(CLOSE))) == (1000, "deleted")
        pass_time(web, clock, 6_000)
        assert raw.read()[0] == -1


def test_an_expired_key_ends_its_reader(web: World, clock: ManualClock) -> None:
    with reading(web, f"{QUEUES}/q", key=web.key("t", expires_in_sec=10)) as reader:
        pass_time(web, clock, 9_999)
        reader.ask("publish", messages={"message": 1})
        pass_time(web, clock, 1)
        assert reader.close_code() == (1008, "the credential is no longer valid")


def test_a_stopping_server_says_so(tmp_path: Path) -> None:
    with world(tmp_path) as web:
        publish(web, f"{QUEUES}/q", 1)
        reader = reading(web, f"{QUEUES}/q")
        assert reader.bodies(1) == [1]
        stopping = threading.Thread(target=lambda: web.run(web.server.stop()))
        stopping.start()
        assert reader.close_code() == (1001, "the server ends")
        reader.link.close()
        stopping.join()


# Who may


def test_a_revoked_key_ends_its_reader(web: World) -> None:
    made = web.admin.post("/keys", json={"tenant": "t"}).json()
    with reading(web, f"{QUEUES}/q", key=made["api_key"]) as reader:
        assert web.admin.delete(f"/keys/{made['kid']}").status_code == 200
        assert reader.close_code() == (1008, "the credential is no longer valid")


def test_tenants_see_their_own_queues_only(web: World) -> None:
    publish(web, f"{QUEUES}/q", "default")
    with reading(web, f"{QUEUES}/q", key=web.key("t")) as reader:
        reader.ask("publish", messages={"message": "t"})
        assert reader.bodies(1) == ["t"]
    assert stats(web, "q")["ready"] == 1


def refused(web: World, path: str, **more: Any) -> int:
    with pytest.raises(InvalidStatus) as caught:
        reading(web, path, **more)
    return int(caught.value.response.status_code)


def test_nobody_reads_without_a_credential_and_the_right_to(web: World) -> None:
    assert refused(web, f"{QUEUES}/q", key=None) == 401
    assert refused(web, f"{QUEUES}/q", key="wrong") == 401
    key = web.key("t", rights={"configure": "", "write": "", "read": "^mine$"})
    for path in (f"{QUEUES}/q", f"{TOPICS}/q", f"{STREAMS}/q"):
        assert refused(web, path, key=key) == 403
    assert refused(web, f"{STREAMS}/nothing") == 404
    assert refused(web, f"{QUEUES}/q", credit="x") == 400


def test_a_reader_publishes_only_with_the_right_to(web: World) -> None:
    key = web.key("t", rights={"configure": ".*", "write": "", "read": ".*"})
    with reading(web, f"{QUEUES}/q", key=key) as reader:
        assert reader.ask("publish", messages={"message": 1})["code"] == "access_refused"


def test_a_page_shows_its_credential_as_a_subprotocol(web: World) -> None:
    for offered in (["rookery.v1", f"rookery.bearer.{ADMIN}"], [f"rookery.bearer.{web.key('t')}", "rookery.v1"]):
        with reading(web, f"{QUEUES}/q", key=None, subprotocols=offered) as reader:
            assert reader.link.subprotocol == "rookery.v1"
            reader.ask("publish", messages={"message": 1})
            assert reader.bodies(1) == [1]
    assert refused(web, f"{QUEUES}/q", key=None, subprotocols=["rookery.v1", "rookery.bearer.wrong"]) == 401
    assert ADMIN not in web.log.getvalue()


def test_pages_of_other_sites_are_refused_even_with_a_credential(web: World) -> None:
    assert refused(web, f"{QUEUES}/q", origin="https://elsewhere.example") == 403
    with reading(web, f"{QUEUES}/q", origin=f"http://{web.address}") as reader:
        assert reader.ask("publish", messages={"message": 1})


def test_requests_of_a_reader_count_against_its_rate(tmp_path: Path, clock: ManualClock) -> None:
    with world(tmp_path, clock, rate_limit=3) as web, reading(web, f"{QUEUES}/q") as reader:
        for _ in range(2):
            assert "code" not in reader.ask("publish", messages={"message": 1})
        assert reader.ask("publish", messages={"message": 1})["code"] == "rate_limited"
        clock.advance(1_000)
        assert "code" not in reader.ask("publish", messages={"message": 1})


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"Sec-WebSocket-Version": "8"}, 400),
        ({"Sec-WebSocket-Key": "short"}, 400),
        ({"Sec-WebSocket-Key": None}, 400),
        ({"Upgrade": "h2c"}, 200),
        ({"Connection": "keep-alive"}, 200),
    ],
)
def test_a_handshake_that_is_none_is_answered_as_a_request(web: World, change: Any, status: int) -> None:
    headers = {**HANDSHAKE, **change}
    shown = {name: value for name, value in headers.items() if value is not None}
    with web.admin.stream("GET", f"{QUEUES}/q/stream", headers=shown) as answer:
        assert answer.status_code == status
        if status == 200:
            assert answer.headers["content-type"] == "text/event-stream"
        if "Sec-WebSocket-Version" in change:
            assert answer.headers["sec-websocket-version"] == "13"


def test_only_a_websocket_can_be_a_member_of_a_group(web: World) -> None:
    records(web, 1)
    answer = web.admin.get(f"{STREAMS}/s/stream", params={"group": "g"})
    assert (answer.status_code, answer.json()["argument"]) == (400, "group")
    for query in ({"partition": 0}, {"after": "0"}, {"from_": "0"}):
        assert refused(web, f"{STREAMS}/s", group="g", **query) == 400
    assert web.admin.get(f"{STREAMS}/s/groups").json()["groups"] == []


# Flow


def test_a_slow_reader_leaves_its_messages_where_they_are_and_holds_up_nobody(web: World) -> None:
    fill(web, "q", [b"x" * 50_000] * 401)
    with RawSocket(web, f"{QUEUES}/q/stream") as raw:
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)

        def is_full(server: Any) -> bool:
            return any(reader._connection.write_paused for reader in server._web.readers.readers.values())

        until(web, is_full)
        assert stats(web, "q")["ready"] > 200
        publish(web, f"{QUEUES}/other", 1)
        with reading(web, f"{QUEUES}/other") as reader:
            assert reader.bodies(1) == [1]
        taken = 0
        while taken < 401:
            taken += len(json.loads(raw.until(int(TEXT)))["messages"])
    assert stats(web, "q")["ready"] == 0


def test_acks_get_through_while_a_reader_does_not_read(web: World) -> None:
    fill(web, "q", [b"x" * 50_000] * 401)
    with RawSocket(web, f"{QUEUES}/q/stream?ack=explicit&credit=1000") as raw:
        lease = json.loads(raw.until(int(TEXT)))["messages"][0]["lease"]

        def is_full(server: Any) -> bool:
            return any(reader._connection.write_paused for reader in server._web.readers.readers.values())

        until(web, is_full)
        raw.ask(op="settle", leases=[lease])
        until(web, lambda server: server.engine.shard.tenants["default"].queues["q"].acked == 1)


def test_one_that_asks_without_reading_the_answers_is_not_listened_to_for_ever(web: World) -> None:
    fill(web, "q", [b"x" * 50_000] * 401)
    with RawSocket(web, f"{QUEUES}/q/stream") as raw:

        def is_full(server: Any) -> bool:
            return any(reader._connection.write_paused for reader in server._web.readers.readers.values())

        until(web, is_full)
        raw.sock.settimeout(0.5)
        asked = RawSocket.frame(1, b'{"op":"settle","leases":["' + b"x" * 1_000 + b'"],"ref":1}') * 100
        with pytest.raises(TimeoutError):
            for _ in range(1_000):
                raw.sock.sendall(asked)

        def waiting(server: Any) -> int:
            return max(len(reader._answers) for reader in server._web.readers.readers.values())

        assert ANSWERS_MAX < web.inside(waiting) < ANSWERS_MAX + 1_000


def test_other_requests_on_the_same_connection_are_answered_before(web: World) -> None:
    with web.connect() as raw:
        lines = [f"GET {QUEUES}/q/stream HTTP/1.1", "Host: localhost", f"Authorization: Bearer {ADMIN}"]
        lines += [f"{name}: {value}" for name, value in HANDSHAKE.items()]
        raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", ("\r\n".join(lines) + "\r\n\r\n").encode())
        assert raw.answer()[0] == 200
        status, headers, _ = raw.answer()
        assert (status, headers["upgrade"], headers["connection"]) == (101, "websocket", "Upgrade")
        assert "content-length" not in headers
        assert "content-type" not in headers


def test_many_readers_share_a_queue(web: World) -> None:
    readers = [reading(web, f"{QUEUES}/q", ack="explicit", credit=10) for _ in range(5)]
    fill(web, "q", [b"%d" % n for n in range(50)])
    found = [int(body) for reader in readers for body in reader.bodies(10)]
    assert sorted(found) == list(range(50))
    for reader in readers:
        reader.link.close()


def test_the_paths_say_in_the_document_that_they_can_be_upgraded(web: World) -> None:
    paths = httpx.get(f"{web.base}/openapi.json").json()["paths"]
    for kind in ("queues", "topics", "streams"):
        described = paths[f"/api/v1/{kind}/{{name}}/stream"]["get"]
        assert "WebSocket" in described["description"]
        assert "101" in described["responses"]


def test_readers_of_a_stream_count_as_subscriptions(web: World) -> None:
    records(web, 1)
    with reading(web, f"{STREAMS}/s", from_="first") as reader:
        reader.next()
        assert web.inside(lambda server: server.engine.shard.tenants["default"].subscriptions) == 1
        web.inside(lambda server: server.engine.shard.tenants["default"].limits.set({"subscriptions_max": 1}))
        assert refused(web, f"{STREAMS}/s") == 429
