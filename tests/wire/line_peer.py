"""A broker that speaks lines, on a manual clock with manual timers, and a scripted peer of it."""

from __future__ import annotations

from collections.abc import Callable

from rookery.clock import ManualClock
from rookery.core.access import FULL, Principal
from rookery.core.queue import Queue
from rookery.core.shard import Shard
from rookery.wire.line.connection import LineConnection, LineFace
from rookery.wire.turn import Turn
from tests.wire.amqp_peer import Driver, Transport

DECLARED = ["Exchange declared successfully", "Queue declared successfully", "Queue bound to exchange successfully"]
PUBLISHED = "Message published successfully"

GAP_MS = 20
ACK_WAIT_MS = 200


class PlainTransport(Transport):
    def get_extra_info(self, _name: str) -> object:
        return None


class Timer:
    def __init__(self, due_ms: int, work: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.work = work
        self.over = False

    def cancel(self) -> None:
        self.over = True


class Broker:
    """A face with one tenant. `guest` is who shows nothing, `users` are (name, password) -> principal."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.driver = Driver(self.clock)
        self.shard: Shard = self.driver.shard
        self.guest: Principal | None = Principal("guest", "default", FULL)
        self.users: dict[tuple[str, str], Principal] = {}
        self.slow_logins: list[tuple[LineConnection, str, str]] | None = None
        self.timers: list[Timer] = []
        self.woken = 0
        self.log: list[tuple[str, str]] = []
        self.turn = Turn(self.driver, self._wake)
        self.face = LineFace(self.turn, lambda _: self.guest, self._login, self._later)
        self.face.log = lambda event, _peer, reason: self.log.append((event, reason))
        self.driver.begin()
        self.tenant = self.shard.create_tenant("default")
        self.driver.end()

    def _wake(self) -> None:
        self.woken += 1

    def _login(self, connection: LineConnection, user: str, password: str) -> None:
        if self.slow_logins is not None:
            self.slow_logins.append((connection, user, password))
        else:
            self.answer_login(connection, user, password)

    def answer_login(self, connection: LineConnection, user: str, password: str) -> None:
        connection.login_done(self.users.get((user, password)), "invalid user name or password")

    def _later(self, delay_ms: int, work: Callable[[], None]) -> Timer:
        timer = Timer(self.clock.mono_ms() + delay_ms, work)
        self.timers.append(timer)
        return timer

    def queue(self, name: str) -> Queue:
        return self.tenant.queues[name]

    def take_turn(self, work: Callable[[], object] = lambda: None) -> None:
        assert self.turn.begin()
        try:
            work()
        finally:
            self.turn.end()

    def settle(self) -> None:
        """Take turns for as long as somebody asks for one."""
        while self.woken:
            self.woken = 0
            self.take_turn()

    def pass_time(self, ms: int) -> None:
        """Let time pass, with all timers that run out meanwhile, each at its time."""
        end = self.clock.mono_ms() + ms
        while True:
            due = [timer for timer in self.timers if not timer.over and timer.due_ms <= end]
            if not due:
                break
            first = min(due, key=lambda timer: timer.due_ms)
            self.clock.advance(max(0, first.due_ms - self.clock.mono_ms()))
            first.over = True
            self.take_turn(first.work)
        self.timers = [timer for timer in self.timers if not timer.over]
        self.clock.advance(end - self.clock.mono_ms())
        self.take_turn(self.face.tick)

    def sync(self) -> None:
        """The journal takes what there is, and has it."""
        log = self.shard.log
        log.open_segment(1)
        log.take_changes()
        log.take(1, 0)

        def answered() -> None:
            log.written = log.durable = log.batch - 1

        self.take_turn(answered)

    def publish(self, queue: str, *bodies: bytes) -> None:
        """Messages from another face."""

        def work() -> None:
            for body in bodies:
                self.shard.publish(self.tenant, "", queue, b"\x00\x00", body)

        self.take_turn(work)


class Peer:
    """One connection to a Broker and its far end. `lines` are those that came since it was last asked."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.transport = PlainTransport()
        self.connection = LineConnection(broker.face)
        self.connection.connection_made(self.transport)
        self._read = 0

    def send(self, *lines: str) -> None:
        self.connection.data_received("".join(f"{line}\n" for line in lines).encode())

    def received(self) -> bytes:
        data = b"".join(self.transport.sent)
        new = data[self._read :]
        self._read = len(data)
        return new

    def lines(self) -> list[str]:
        return self.received().decode("utf-8", "surrogateescape").splitlines()

    def ask(self, *lines: str) -> list[str]:
        self.lines()
        self.send(*lines)
        return self.lines()

    def consume(self, queue: str = "q", options: str = "") -> None:
        """Consume, and let the gap pass."""
        assert self.ask(f"CONSUME {queue}{options}") == ["Consumer started"]
        self.broker.pass_time(GAP_MS)

    def lose(self) -> None:
        self.transport.closed = True
        self.connection.connection_lost(None)


def prepared(broker: Broker) -> Peer:
    """A connection, on a broker with queue q bound to the direct exchange x by k."""
    made = Peer(broker)
    assert made.ask("DECLARE_EXCHANGE x direct", "DECLARE_QUEUE q", "BIND_QUEUE q x k") == DECLARED
    return made


def bodies(broker: Broker, queue: str) -> list[bytes]:
    return [entry.message.body for entry in broker.queue(queue).ready_entries()]
