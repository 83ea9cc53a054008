"""What the tests of pipelines share: records as documents, and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.interop.spark_world import KEY, World


def write(folder: Path, world: World, text: str, name: str = "p") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(f"broker: {{endpoint: '{world.url}', token: {KEY}}}\n{text}")
    return path


def publish(world: World, stream: str, rows: list[Any]) -> None:
    for at in range(0, len(rows), 1_000):
        world.call("POST", f"/streams/{stream}/publish", [{"message": row} for row in rows[at : at + 1_000]])


def documents(world: World, stream: str) -> list[Any]:
    """The JSON in the records of a stream, partition by partition."""
    found: list[Any] = []
    for row in world.call("GET", f"/streams/{stream}")["partitions"]:
        at = row["first"]
        while at < row["end"]:
            page = world.call("GET", f"/streams/{stream}/records?partition={row['partition']}&from={at}")
            # without its content type JSON is shown as the text that it is
            values = [record["value"] for record in page["records"]]
            found += [json.loads(value) if isinstance(value, str) else value for value in values]
            at = page["next"]
    return found
