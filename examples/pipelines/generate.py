"""Orders, payments and sensor readings for the pipelines of this folder: the same for the same seed.

    python examples/pipelines/generate.py http://127.0.0.1:8080

makes the streams `orders`, `payments` and `readings` and fills them. With `--count N` there are N orders.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
REGIONS = ("eu", "us", "asia")
STREAMS = {"orders": 2, "payments": 2, "readings": 1}


def orders(count: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """One every two seconds; one in twenty has no customer, as happens."""
    chance = random.Random(seed)
    for number in range(count):
        yield {
            "order_id": number,
            "customer": None if chance.random() < 0.05 else f"c{chance.randrange(50)}",
            "region": chance.choice(REGIONS),
            "amount_cents": chance.randrange(100, 50_000),
            "at": (START + timedelta(seconds=2 * number)).isoformat(),
        }


def payments(count: int, seed: int = 2) -> Iterator[dict[str, Any]]:
    """Four of five orders are paid, within ten minutes, and not in the order in which they were made."""
    chance = random.Random(seed)
    found = []
    for order in orders(count):
        if chance.random() < 0.8:
            at = datetime.fromisoformat(order["at"]) + timedelta(seconds=chance.randrange(1, 600))
            found.append({"order_id": order["order_id"], "paid_cents": order["amount_cents"], "at": at.isoformat()})
    return iter(sorted(found, key=lambda payment: str(payment["at"])))


def readings(count: int, seed: int = 3) -> Iterator[dict[str, Any]]:
    """Of three sensors, one a second; one in fifty comes up to a minute late."""
    chance = random.Random(seed)
    for number in range(count):
        late = chance.randrange(60) if chance.random() < 0.02 else 0
        yield {
            "sensor": f"s{chance.randrange(3)}",
            "celsius": round(chance.gauss(20, 3), 1),
            "at": (START + timedelta(seconds=number - late)).isoformat(),
        }


class Broker:
    """As much of the HTTP API as is needed here."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key

    def call(self, method: str, path: str, body: object) -> Any:
        request = urllib.request.Request(f"{self._url}/api/v1{path}", json.dumps(body).encode(), method=method)
        request.add_header("Content-Type", "application/json")
        if self._key:
            request.add_header("Authorization", f"Bearer {self._key}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def publish(self, stream: str, rows: list[dict[str, Any]], key: str) -> None:
        for at in range(0, len(rows), 1_000):
            messages = [{"message": row, "key": str(row[key])} for row in rows[at : at + 1_000]]
            self.call("POST", f"/streams/{stream}/publish", messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default=os.environ.get("ROOKERY_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--count", type=int, default=1_000)
    said = parser.parse_args()
    broker = Broker(said.url.rstrip("/"), os.environ.get("ROOKERY_API_KEY", ""))
    for stream, partitions in STREAMS.items():
        broker.call("PUT", f"/streams/{stream}", {"partitions": partitions})
    broker.publish("orders", list(orders(said.count)), "customer")
    broker.publish("payments", list(payments(said.count)), "order_id")
    broker.publish("readings", list(readings(said.count)), "sensor")
    print(f"{said.count} orders, their payments and {said.count} readings are at {said.url}")


if __name__ == "__main__":
    main()
