"""`make demo`: a broker, a small shop that publishes and consumes with its troubles, the pipelines, and their insights.

Everything is in one folder, on free ports of loopback, and ends with the program. What the shop does: orders come in
and go to billing, packing and mail by topic; workers are mostly quick and sometimes slow; the payment provider is out
for a while; some orders are broken, some coupons expire, some keys lead nowhere.

It ends well only if the tables are filled, and what they count is what the broker's meters say.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rookery as package
from rookery.lake.insights import ARCHIVE, GOLD, gold_rows
from rookery.lake.pipelines import statuses
from rookery.pipelines.builtin.archive import Archive
from rookery.spark.client import Client
from rookery.spark.options import Connection
from rookery.spark.session import QUICK_FLAGS

KEY = "demo-key"
TRAFFIC_SEC = 30
PATIENCE_SEC = 300
QUEUES = ("billing", "packing", "mail")
COUNTED = ("published", "delivered", "acked", "retried", "expired", "dead_lettered", "dropped")
OUTAGE = (0.35, 0.6)
"""The part of the time in which the payment provider is out."""

ENVIRON = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
"""Every process is of the package that this one is of."""

REGIONS = ("eu", "us", "asia")


class Shop:
    """Producers and consumers, in threads, until their time is over."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._began = time.monotonic()
        self._seconds = seconds
        self.published = 0
        self.settled = 0

    def open(self) -> None:
        client = self._client()
        client.put("/api/v1/exchanges/shop", {"kind": "topic"})
        client.put("/api/v1/streams/orders", {"partitions": 2})
        for queue, key, options in (
            ("billing", "order.#", {"max_attempts": 3}),
            ("packing", "order.*.new", {"max_attempts": 4}),
            ("mail", "mail.#", {"ttl_ms": 4_000}),
        ):
            client.put(f"/api/v1/queues/{queue}", options)
            client.post("/api/v1/bindings", {"source": "shop", "target": queue, "key": key})
        client.post(
            "/api/v1/bindings", {"source": "shop", "target": "orders", "target_kind": "stream", "key": "order.#"}
        )

    @property
    def share(self) -> float:
        """How much of the time is over."""
        return (time.monotonic() - self._began) / self._seconds

    def run(self) -> None:
        self._began = time.monotonic()
        work: list[Callable[[], None]] = [
            *(lambda seed=seed: self._produce(seed) for seed in range(2)),
            *(lambda seed=seed: self._consume("billing", seed, self._bill) for seed in range(3)),
            *(lambda seed=seed: self._consume("packing", seed, self._pack) for seed in range(2)),
            self._send_mail,
        ]
        threads = [threading.Thread(target=each, daemon=True) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self) -> Caller:
        return Caller(self._url)

    def _produce(self, seed: int) -> None:
        chance, client = random.Random(seed), self._client()
        while self.share < 0.85:
            rows = []
            for _ in range(chance.randint(5, 25)):
                region = chance.choice(REGIONS)
                order = {
                    "order": chance.randint(1, 99_999),
                    "region": region,
                    "total": round(chance.expovariate(0.02), 2),
                }
                if chance.random() < 0.02:
                    order["total"] = "n/a"
                kind = chance.choices(
                    (f"order.{region}.new", f"order.{region}.paid", "mail.coupon", "lost.key"), (6, 3, 2, 0.2)
                )
                rows.append({"message": order, "routing_key": kind[0]})
            client.post("/api/v1/exchanges/shop/messages", rows)
            self.published += len(rows)
            time.sleep(chance.uniform(0.05, 0.15))

    def _consume(self, queue: str, seed: int, handle: Callable[[random.Random, Any], tuple[str, str]]) -> None:
        chance, client = random.Random(seed), self._client()
        while self.share < 1:
            found = client.post(f"/api/v1/queues/{queue}/claim", {"max": 10, "wait_ms": 300, "lease_ms": 20_000})
            done = []
            for delivery in found["deliveries"]:
                outcome, reason = handle(chance, delivery["message"])
                done.append({"lease": delivery["lease"], "outcome": outcome, "reason": reason})
            if done:
                settled = client.post(f"/api/v1/queues/{queue}/settle", {"settle": done})["settled"]
                self.settled += settled

    def _bill(self, chance: random.Random, order: Any) -> tuple[str, str]:
        time.sleep(chance.expovariate(400))
        if order["total"] == "n/a":
            return "reject", f"ValueError: could not convert string to float: 'n/a' (order {order['order']})"
        if OUTAGE[0] < self.share < OUTAGE[1] and chance.random() < 0.7:
            return "retry", f"PaymentError: provider timed out after {chance.randint(900, 1100)} ms"
        return "ack", ""

    def _pack(self, chance: random.Random, order: Any) -> tuple[str, str]:
        time.sleep(chance.expovariate(250) + (0.3 if chance.random() < 0.01 else 0))
        return ("retry", "shelf is empty") if chance.random() < 0.02 else ("ack", "")

    def _send_mail(self) -> None:
        """A consumer that holds a subscription, and so has a name in the tables."""
        chance = random.Random(1)
        with (
            package.connect(self._url.replace("://", f"://{KEY}@")) as broker,
            broker.queue("mail").subscribe(credit=10, name="mailer") as subscription,
        ):
            while self.share < 1:
                for delivery in subscription.get_many(10, 300):
                    time.sleep(chance.expovariate(30))
                    delivery.ack()
                    self.settled += 1


class Caller(Client):
    """The connector's client, with the demo's key."""

    def __init__(self, url: str) -> None:
        super().__init__(Connection((url,), KEY))


def say(text: str) -> None:
    print(f"\n── {text}", flush=True)


def start_broker(folder: Path) -> tuple[subprocess.Popen[str], str]:
    words = ["serve", "--host", "127.0.0.1", "--http-port", "0", "--amqp-port", "off", "--line-port", "off"]
    words += [
        "--api-key",
        KEY,
        "--pipelines-dir",
        str(folder / "pipelines"),
        "--events-rate",
        "2000",
    ]
    environ = {name: value for name, value in ENVIRON.items() if not name.startswith("ROOKERY_")}
    log = (folder / "broker.log").open("w+")
    process = subprocess.Popen(
        [sys.executable, "-m", "rookery", *words], cwd=folder, env=environ, stderr=log, text=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for line in (folder / "broker.log").read_text().splitlines():
            if '"listening"' in line:
                return process, f"http://{json.loads(line)['http']}"
        time.sleep(0.1)
    sys.exit(f"the broker does not start; see {folder / 'broker.log'}")


def start_pipelines(folder: Path, url: str) -> subprocess.Popen[bytes]:
    root = folder / "pipelines"
    root.mkdir(exist_ok=True)
    # what Java has loaded once, every later demo starts with
    cache = folder.parent / "cache"
    cache.mkdir(exist_ok=True)
    (root / "cache").symlink_to(cache)
    settings = 'lifecycle: {interval: 5s, sla: [{queue: "%", end_to_end_ms: 500}]}\narchive: {interval: 10s}\n'
    (root / "builtin.yaml").write_text(settings)
    words = ["pipelines", "up", "--builtin", "--root", str(root), "--url", url, "--master", "local[2]"]
    # a minute is too short for Java to get fast, so it had better start fast
    environ = {**ENVIRON, "ROOKERY_API_KEY": KEY, "JAVA_TOOL_OPTIONS": QUICK_FLAGS}
    return subprocess.Popen([sys.executable, "-m", "rookery", *words], env=environ)


def rookery(folder: Path, url: str, *words: str) -> None:
    environ = {
        **os.environ,
        "ROOKERY_PIPELINES_DIR": str(folder / "pipelines"),
        "ROOKERY_API_KEY": KEY,
        "ROOKERY_URL": url,
    }
    print(f"\n$ rookery {' '.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "rookery", *words], env=environ, check=True)


def missing(folder: Path, client: Caller) -> list[str]:
    """What the tables do not have yet, in words."""
    root = folder / "pipelines"
    found = [f"{name} is empty" for name in GOLD if not gold_rows(root, name, limit=1)]
    for queue in QUEUES:
        stats = client.get(f"/api/v1/queues/{queue}")["stats"]
        rows = gold_rows(root, "queue_stats", queue=queue, grain="minute")
        for counter in COUNTED:
            counted = sum(row[counter] for row in rows)
            if counted != stats[counter]:
                found.append(f"queue_stats counts {counted} {counter} of {queue}, the broker {stats[counter]}")
    if not (Archive(str(root / ARCHIVE)).path("orders") / "_delta_log").is_dir():
        found.append("the stream orders is not in the archive")
    return found


def caught_up(folder: Path, url: str, pipelines: subprocess.Popen[bytes], patience_sec: float) -> None:
    """Wait until everything that was told is in the tables; the broker tells its counts every ten seconds."""
    client = Caller(url)
    deadline = time.monotonic() + patience_sec
    while wrong := missing(folder, client):
        if time.monotonic() > deadline or pipelines.poll() is not None:
            for status in statuses(folder / "pipelines"):
                error = f": {status.error.message}" if status.error else ""
                print(f"{status.name} is {status.state} at batch {status.progress.batch}{error}", file=sys.stderr)
            reasons = "\n  ".join(wrong)
            sys.exit(f"the demo has failed: the tables are not what they should be\n  {reasons}")
        time.sleep(1)


def end(process: subprocess.Popen[Any]) -> None:
    """End a process in order, or, if it takes too long for that, at once."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/demo"), help="where everything is kept")
    parser.add_argument("--seconds", type=float, default=TRAFFIC_SEC, help="how long the shop is open")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_SEC, help="how long the pipelines may take for the rest, in seconds"
    )
    said = parser.parse_args()
    began = time.monotonic()
    folder = said.folder.absolute() / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    broker, url = start_broker(folder)
    pipelines = start_pipelines(folder, url)
    try:
        say(f"the broker is at {url}, its pipelines start; the shop is open for {said.seconds:.0f} s")
        shop = Shop(url, said.seconds)
        shop.open()
        shop.run()
        say(f"{shop.published:,} messages were published, {shop.settled:,} deliveries settled; the pipelines catch up")
        caught_up(folder, url, pipelines, said.patience)
        end(pipelines)
        say(f"the tables are complete after {time.monotonic() - began:.0f} s")
        rookery(folder, url, "insights", "show", "queue_stats", "--grain", "hour")
        rookery(folder, url, "insights", "show", "dlq_summary")
        rookery(folder, url, "insights", "show", "sla_breaches", "--grain", "hour")
        rookery(folder, url, "insights", "plan", "--out", str(folder / "plan.json"))
        rookery(folder, url, "dead-letters", "redrive", "--plan", str(folder / "plan.json"))
        rookery(folder, url, "insights", "report", "--out", str(folder / "insights.html"))
        say(f"done in {time.monotonic() - began:.0f} s; open {folder / 'insights.html'}")
    finally:
        end(pipelines)
        end(broker)


if __name__ == "__main__":
    main()
