"""Server-sent events of queues, topics and streams, over real sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from rookery.clock import ManualClock
from rookery.core import streams
from rookery.format import properties
from rookery.wire.push.readers import HEARTBEAT_MS, KEEP_MS
from rookery.wire.push.sources import CONFIRM_MS, LINGER_MS, UNCONFIRMED_MAX
from tests.wire.http_world import ADMIN, World, world

QUEUES = "/api/v1/queues"
TOPICS = "/api/v1/topics"
STREAMS = "/api/v1/streams"
PROPS = properties.encode(properties.Properties())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def web(tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    with world(tmp_path, clock) as made:
        yield made


class Events:
    """What a reader is sent."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = self._split()

    def _split(self) -> Iterator[str]:
        """Lines as the specification of events has them: httpx ends them at U+0085 and the like, too."""
        rest = ""
        for text in self.answer.iter_text():
            *lines, rest = (rest + text).split("\n")
            yield from lines

    def block(self) -> dict[str, str]:
        """The fields of the next event; a comment is a field without a name."""
        found: dict[str, str] = {}
        for line in self._lines:
            if not line:
                return found
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            found[name] = f"{found[name]}\n{value}" if name == "data" and name in found else value
        raise EOFError

    def next(self) -> tuple[str, Any]:
        """Id and data of the next event that has both."""
        while True:
            found = self.block()
            if "id" in found:
                return found["id"], json.loads(found["data"])

    def messages(self, count: int) -> list[Any]:
        return [self.next()[1]["message"] for _ in range(count)]


@contextmanager
def reading(web: World, path: str, last: str | None = None, **query: Any) -> Iterator[Events]:
    headers = {"Authorization": f"Bearer {ADMIN}", "Accept": "text/event-stream"}
    if last is not None:
        headers["Last-Event-ID"] = last
    with (
        httpx.Client(base_url=web.base, headers=headers, timeout=30, trust_env=False) as client,
        client.stream("GET", f"{path}/stream", params=query) as answer,
    ):
        if answer.status_code == 200:
            assert answer.headers["content-type"] == "text/event-stream"
        else:
            answer.read()
        yield Events(answer)


def publish(web: World, path: str, *messages: Any, **more: Any) -> None:
    for message in messages:
        answer = web.admin.post(f"{path}/publish", json={"message": message, **more})
        assert answer.status_code in (200, 201), answer.text


def stats(web: World, queue: str) -> Any:
    return web.admin.get(f"{QUEUES}/{queue}/stats").json()


def until(web: World, condition: Any) -> None:
    """Wait for something of the server's; the test's own time limit is httpx's."""
    for _ in range(3_000):
        if web.inside(condition):
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen")


def nobody_reads(server: Any) -> bool:
    return not server._web.readers.readers


def pass_time(web: World, clock: ManualClock, milliseconds: int) -> None:
    clock.advance(milliseconds)
    web.inside(lambda server: server._web.readers.tick())


# Queues


@pytest.mark.row("S2-43")
def test_a_queue_s_messages_arrive_as_events_those_before_and_those_after(web: World) -> None:
    publish(web, f"{QUEUES}/q", {"n": 1})
    with reading(web, f"{QUEUES}/q") as events:
        event_id, first = events.next()
        assert first["message"] == {"n": 1}
        assert first["retry"] == 0
        assert first["delivery_tag"] is None
        publish(web, f"{QUEUES}/q", "two", [3])
        assert events.messages(2) == ["two", [3]]
        assert event_id.endswith(":1")


def test_lines_inside_a_body_are_no_lines_of_the_event(web: World) -> None:
    body = b'{"message": {\r\n "a": 1,\r "b\\n": 2\n}}'
    assert web.admin.post(f"{QUEUES}/q/publish", content=body).status_code == 201
    publish(web, f"{QUEUES}/q", 2)
    with reading(web, f"{QUEUES}/q") as events:
        assert events.messages(2) == [{"a": 1, "b\n": 2}, 2]


@pytest.mark.row("S2-43")
def test_a_reader_that_comes_back_goes_on_behind_the_last_event_it_saw(web: World) -> None:
    publish(web, f"{QUEUES}/q", 1, 2, 3)
    with reading(web, f"{QUEUES}/q") as events:
        ids = [events.next()[0] for _ in range(3)]
    publish(web, f"{QUEUES}/q", 4)
    with reading(web, f"{QUEUES}/q", ids[1]) as events:
        # 3 was sent, but whoever asks has not seen it
        assert events.messages(2) == [3, 4]
    assert stats(web, "q")["acked"] == 2


def test_a_reader_may_come_back_before_its_old_connection_is_known_to_be_gone(web: World) -> None:
    publish(web, f"{QUEUES}/q", 1, 2)
    with reading(web, f"{QUEUES}/q") as old:
        seen = old.next()[0]
        with reading(web, f"{QUEUES}/q", seen) as new:
            assert new.messages(1) == [2]
            publish(web, f"{QUEUES}/q", 3)
            assert new.messages(1) == [3]
        old.next()
        assert old.block() == {"event": "end", "data": '{"reason":"continued by another connection"}'}


def test_what_was_sent_is_acked_a_while_later_if_the_connection_stands(web: World, clock: ManualClock) -> None:
    publish(web, f"{QUEUES}/q", 1)
    with reading(web, f"{QUEUES}/q") as events:
        events.next()
        pass_time(web, clock, CONFIRM_MS - 1)
        assert (stats(web, "q")["in_flight"], stats(web, "q")["acked"]) == (1, 0)
        pass_time(web, clock, 1)
        assert (stats(web, "q")["in_flight"], stats(web, "q")["acked"]) == (0, 1)


def test_what_was_sent_just_before_a_connection_broke_comes_again_for_others(web: World, clock: ManualClock) -> None:
    publish(web, f"{QUEUES}/q", 1)
    with reading(web, f"{QUEUES}/q") as events:
        events.next()
    until(web, nobody_reads)
    pass_time(web, clock, LINGER_MS)
    assert stats(web, "q")["in_flight"] == 1
    pass_time(web, clock, 1)
    assert (stats(web, "q")["in_flight"], stats(web, "q")["ready"]) == (0, 1)


def test_a_session_holds_no_more_than_so_many_unconfirmed_messages(web: World) -> None:
    def fill(server: Any) -> None:
        tenant = server.engine.shard.tenants["default"]
        for _ in range(UNCONFIRMED_MAX + 10):
            server.engine.shard.publish(tenant, "", "q", PROPS, b"x")

    publish(web, f"{QUEUES}/q", "x")
    web.inside(fill)
    with reading(web, f"{QUEUES}/q") as events:
        events.messages(UNCONFIRMED_MAX + 11)
        assert stats(web, "q")["in_flight"] == UNCONFIRMED_MAX


def test_explicit_acks_are_those_of_pull_and_bound_what_is_out(web: World, clock: ManualClock) -> None:
    publish(web, f"{QUEUES}/q", 1, 2, 3)
    with reading(web, f"{QUEUES}/q", ack="explicit", credit=2) as events:
        tag = events.next()[1]["delivery_tag"]
        seen, second = events.next()
        assert stats(web, "q")["in_flight"] == 2
        assert web.admin.post(f"{QUEUES}/q/ack", json={"delivery_tag": tag}).status_code == 200
        assert events.messages(1) == [3]
    until(web, nobody_reads)
    with reading(web, f"{QUEUES}/q", seen, ack="explicit") as events:
        # the third comes again, the second is still to be acked
        assert events.messages(1) == [3]
        answer = web.admin.post(f"{QUEUES}/q/ack", json={"delivery_tag": second["delivery_tag"]})
        assert answer.status_code == 200
        clock.advance(30_000)
        _, again = events.next()
        assert (again["message"], again["retry"]) == (3, 1)


def test_an_unknown_event_id_begins_anew(web: World) -> None:
    for number, seen in enumerate(("nobody:7", "x", ":", "a:b", "7:nobody")):
        publish(web, f"{QUEUES}/q{number}", 1)
        with reading(web, f"{QUEUES}/q{number}", seen) as events:
            assert events.messages(1) == [1]


def test_a_deleted_queue_ends_its_readers(web: World) -> None:
    with reading(web, f"{QUEUES}/q") as events:
        events.block()
        web.inside(lambda server: server.engine.shard.tenants["default"].delete_queue("q"))
        assert events.block() == {"event": "end", "data": '{"reason":"deleted"}'}
        with pytest.raises(EOFError):
            events.block()


def test_a_silent_connection_is_kept_alive_by_heartbeats(web: World, clock: ManualClock) -> None:
    with reading(web, f"{QUEUES}/q") as events:
        assert events.block() == {"retry": "1000"}
        pass_time(web, clock, HEARTBEAT_MS)
        assert events.block() == {"": ""}


def test_a_head_request_opens_nothing(web: World) -> None:
    publish(web, f"{QUEUES}/q", 1)
    answer = web.admin.head(f"{QUEUES}/q/stream")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    assert stats(web, "q")["consumers"] == 0
    assert nobody_reads(web.server)


def test_a_revoked_key_ends_its_readers(web: World) -> None:
    made = web.admin.post("/keys", json={"tenant": "t"}).json()
    key, kid = made["api_key"], made["kid"]
    headers = {"Authorization": f"Bearer {key}"}
    with (
        httpx.Client(base_url=web.base, headers=headers, timeout=30, trust_env=False) as client,
        client.stream("GET", f"{QUEUES}/q/stream") as answer,
    ):
        events = Events(answer)
        events.block()
        assert web.admin.delete(f"/keys/{kid}").status_code == 200
        with pytest.raises(EOFError):
            events.block()


def test_nobody_reads_without_the_right_to(web: World) -> None:
    assert web.client.get(f"{QUEUES}/q/stream").status_code == 401
    made = web.large("t", rights={"configure": "", "write": ".*", "read": "^mine$"})
    for path in (f"{QUEUES}/q", f"{TOPICS}/q", f"{STREAMS}/q"):
        assert made.get(f"{path}/stream").status_code == 403


def test_a_slow_reader_leaves_its_messages_where_they_are_and_holds_up_nobody(web: World) -> None:
    body = "x" * 50_000

    def fill(server: Any) -> None:
        shard = server.engine.shard
        for _ in range(400):
            shard.publish(shard.tenants["default"], "", "q", PROPS, body.encode())

    publish(web, f"{QUEUES}/q", body)
    web.inside(fill)
    with socket.create_connection(("127.0.0.1", web.port), 30) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        head = f"GET {QUEUES}/q/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN}\r\n\r\n"
        slow.sendall(head.encode())

        def full(server: Any) -> bool:
            return any(reader._call.connection.write_paused for reader in server._web.readers.readers.values())

        until(web, full)
        assert stats(web, "q")["ready"] > 200
        publish(web, f"{QUEUES}/other", 1)
        with reading(web, f"{QUEUES}/other") as events:
            assert events.messages(1) == [1]
        taken = 0
        while taken < 401 * 50_000:
            taken += len(slow.recv(1 << 20))
    assert stats(web, "q")["ready"] == 0


def test_a_stopping_server_ends_its_readers_at_once(tmp_path: Path) -> None:
    with world(tmp_path, shutdown_sec="600") as web, reading(web, f"{QUEUES}/q") as events:
        events.block()
        web.run(web.server.stop())
        with pytest.raises(EOFError):
            events.block()


# Topics


@pytest.mark.row("S2-43")
def test_a_topic_s_reader_gets_what_matches_and_what_came_while_it_was_away(web: World) -> None:
    with reading(web, f"{TOPICS}/t", routing_key="order.*") as events:
        events.block()
        publish(web, f"{TOPICS}/t", "no", routing_key="invoice.paid")
        publish(web, f"{TOPICS}/t", "yes", routing_key="order.made")
        seen, first = events.next()
        assert (first["message"], first["routing_key"]) == ("yes", "order.made")
    until(web, nobody_reads)
    publish(web, f"{TOPICS}/t", "away", routing_key="order.paid")
    with reading(web, f"{TOPICS}/t", seen) as events:
        assert events.messages(1) == ["away"]


def test_a_topic_s_reader_that_stays_away_is_forgotten(web: World, clock: ManualClock) -> None:
    with reading(web, f"{TOPICS}/t") as events:
        events.block()
        publish(web, f"{TOPICS}/t", 1)
        seen, _ = events.next()
    until(web, nobody_reads)
    assert web.inside(lambda server: len(server.engine.shard.tenants["default"].queues)) == 1
    clock.advance(KEEP_MS)
    assert web.inside(lambda server: len(server.engine.shard.tenants["default"].queues)) == 0
    with reading(web, f"{TOPICS}/t", seen) as events:
        events.block()
        publish(web, f"{TOPICS}/t", 2)
        assert events.messages(1) == [2]


def test_a_topic_s_reader_may_share_a_subscription(web: World) -> None:
    made = web.admin.post(f"{TOPICS}/t/subscriptions", json={"routing_key": "a"}).json()
    publish(web, f"{TOPICS}/t", 1, routing_key="a")
    with reading(web, f"{TOPICS}/t", subscription=made["subscription_id"]) as events:
        assert events.messages(1) == [1]
    with reading(web, f"{TOPICS}/t", subscription="nobody") as events:
        assert events.answer.status_code == 404


# Streams


def records(web: World, count: int, partitions: int = 1) -> None:
    def append(server: Any) -> None:
        tenant = server.engine.shard.tenants["default"]
        streams.declare(tenant, "s", {"partitions": partitions})
        for number in range(count):
            server.engine.shard.publish(tenant, "", "s", PROPS, b"%d" % number)

    web.inside(append)


@pytest.mark.row("S2-43")
def test_a_stream_is_read_from_where_one_likes_and_on(web: World) -> None:
    records(web, 5)
    with reading(web, f"{STREAMS}/s", **{"from": "first"}) as events:
        assert events.messages(5) == ["0", "1", "2", "3", "4"]
        records(web, 1)
        event_id, found = events.next()
        assert (event_id, found["offset"], found["partition"]) == ("5", 5, 0)
        assert "headers" not in found
    with reading(web, f"{STREAMS}/s", **{"from": "3"}) as events:
        assert [events.next()[0] for _ in range(3)] == ["3", "4", "5"]
    with reading(web, f"{STREAMS}/s", "4") as events:
        assert events.next()[0] == "5"
    with reading(web, f"{STREAMS}/s") as events:
        events.block()
        records(web, 1)
        assert events.next()[0] == "6"


def test_each_partition_goes_on_by_itself(web: World) -> None:
    records(web, 10, partitions=3)
    with reading(web, f"{STREAMS}/s", **{"from": "first"}) as events:
        seen = [events.next() for _ in range(10)]
    everything = {(found["partition"], found["offset"]) for _, found in seen}
    assert len(everything) == 10
    assert {(0, 2), (1, 2), (2, 2)} < everything
    known = {(found["partition"], found["offset"]) for _, found in seen[:4]}
    with reading(web, f"{STREAMS}/s", seen[3][0]) as events:
        rest = {(found["partition"], found["offset"]) for _, found in (events.next() for _ in range(6))}
    assert known | rest == everything
    with reading(web, f"{STREAMS}/s", **{"from": "2"}, partition=1) as events:
        assert events.next()[1]["partition"] == 1


def test_offsets_that_make_no_sense_are_refused(web: World) -> None:
    records(web, 2, partitions=2)
    for last, query, status in (
        ("x", {}, 400),
        ("0:9", {}, 416),
        ("0", {}, 400),
        (None, {"from": "0"}, 400),
        (None, {"from": "7", "partition": 0}, 416),
        (None, {"from": "next", "partition": 2}, 400),
        (None, {"from": "last"}, 400),
    ):
        with reading(web, f"{STREAMS}/s", last, **query) as events:
            assert events.answer.status_code == status, (last, query)
    with reading(web, f"{STREAMS}/nothing") as events:
        assert events.answer.status_code == 404
    assert web.inside(lambda server: server.engine.shard.feeds) == []


def test_a_long_stream_is_read_as_fast_as_its_reader_reads(web: World) -> None:
    records(web, 5_000)
    with reading(web, f"{STREAMS}/s", **{"from": "first"}) as events:
        assert [events.next()[0] for _ in range(5_000)] == [str(n) for n in range(5_000)]
    until(web, nobody_reads)
    assert web.inside(lambda server: server.engine.shard.feeds) == []
    assert web.inside(lambda server: server.engine.shard.tenants["default"].subscriptions) == 0


def test_a_deleted_stream_ends_its_readers(web: World) -> None:
    records(web, 1, partitions=2)
    with reading(web, f"{STREAMS}/s") as events:
        events.block()
        web.inside(lambda server: streams.delete(server.engine.shard.tenants["default"], "s"))
        assert events.block() == {"event": "end", "data": '{"reason":"deleted"}'}
