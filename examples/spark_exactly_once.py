"""Spark reads a stream and writes what it chooses to another one, each record once, also when it is run again.

Needs `pip install 'rookery[spark]'` and Java 17 or newer.

Prints:

    large orders: 100, distinct: 100
    the last batch again: 100, distinct: 100
    after ten more orders: 110, distinct: 110
    orders that the job has not seen: 0
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rookery.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = "an-admin-key"


@contextmanager
def broker(folder: str) -> Iterator[str]:
    """`rookery serve` with its data in a folder; where it is."""
    command = [sys.executable, "-m", "rookery", "serve", "--host", "127.0.0.1", "--http-port", "0", "--api-key", KEY]
    command += ["--amqp-port", "off", "--line-port", "off"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = next(line for line in map(json.loads, process.stderr) if line["event"] == "listening")
        try:
            yield f"http://{said['http']}"
        finally:
            process.terminate()
            process.communicate()


def call(method: str, url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Authorization": f"Bearer {KEY}"}, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def publish(url: str, amounts: range) -> None:
    call("POST", f"{url}/api/v1/streams/orders/publish", [{"message": {"amount": amount}} for amount in amounts])


def choose(spark: "SparkSession", here: dict[str, str], folder: str) -> None:
    """The job: all orders that have come since it last ran, in batches of 400."""
    orders = (
        spark.readStream.format("rookery")
        .options(**here, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=400, consumerGroup="job")
        .load()
    )
    large = orders.selectExpr("cast(value AS string) AS value").where("get_json_object(value, '$.amount') >= 900")
    writer = large.repartition(2).writeStream.format("rookery").options(**here, topic="large-orders")
    writer.options(checkpointLocation=f"{folder}/job").trigger(availableNow=True).start().awaitTermination()


def show(what: str, spark: "SparkSession", here: dict[str, str]) -> None:
    found = spark.read.format("rookery").options(**here, subscribe="large-orders").load().select("value")
    print(f"{what}: {found.count()}, distinct: {found.distinct().count()}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, broker(folder) as url:
        for stream in ("orders", "large-orders"):
            call("PUT", f"{url}/api/v1/streams/{stream}", {"partitions": 2})
        publish(url, range(1_000))
        spark = rookery.spark.session("local[2]", profile="test")
        here = {"endpoint": url, "token": KEY}
        choose(spark, here, folder)
        show("large orders", spark, here)
        # as if the driver had died after the broker's commit of a batch and before its own
        newest = max(Path(folder, "job", "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink()
        choose(spark, here, folder)
        show("the last batch again", spark, here)
        publish(url, range(1_000, 1_010))
        choose(spark, here, folder)
        show("after ten more orders", spark, here)
        group = call("GET", f"{url}/api/v1/streams/orders/groups/job")
        print("orders that the job has not seen:", group["lag"])
        spark.stop()


if __name__ == "__main__":
    # pyspark's own
    warnings.simplefilter("ignore")
    main()
