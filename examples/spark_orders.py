"""Spark reads orders from a stream as they come, writes the large ones to another, each once, and counts all of them.

Needs `pip install 'rookery[spark]'`, Java 17 or newer, and a broker: `rookery serve --api-key secret`.

Prints:

    large: [2, 4]
    waiting for the query: 0
    from Spark: {"id":2,"amount":2500.0}
    from Spark: {"id":4,"amount":4000.0}
    orders in all: 5, of which unreadable: ['no order']
"""

import json
import os
import tempfile
import urllib.request
from typing import Any

import rookery.spark

URL = os.environ.get("ROOKERY_URL", "http://localhost:8080")
KEY = os.environ.get("API_KEY", "secret")


def call(method: str, path: str, body: object = None) -> Any:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/api/v1{path}", data, headers, method=method)) as answer:
        return json.load(answer)


for stream in ("orders", "large-orders"):
    call("PUT", f"/streams/{stream}")
amounts = {1: 300.0, 2: 2500.0, 3: 20.0, 4: 4000.0}
orders = [{"message": {"id": number, "amount": amount}} for number, amount in amounts.items()]
call("POST", "/streams/orders/publish", [*orders, {"message": "no order"}])

spark = rookery.spark.session("local[2]", profile="test")
here = {"endpoint": URL, "token": KEY}

arriving = spark.readStream.format("rookery").options(
    **here, subscribe="orders", startingOffsets="earliest", consumerGroup="large-orders"
)
large = rookery.spark.decode(arriving.load(), "id long, amount double").where("amount > 1000")
with tempfile.TemporaryDirectory() as checkpoint:
    writer = large.selectExpr("to_json(struct(id, amount)) AS value").writeStream.format("rookery")
    query = writer.options(**here, topic="large-orders", checkpointLocation=checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()

written = call("GET", "/streams/large-orders/records")["records"]
print("large:", [json.loads(record["value"])["id"] for record in written])
print("waiting for the query:", call("GET", "/streams/orders/groups/large-orders")["lag"])
for record in written:
    print("from Spark:", record["value"])

history = rookery.spark.decode(rookery.spark.history(spark, "orders", **here), "id long, amount double")
unreadable = [json.loads(row[0]) for row in history.where("id IS NULL").select("_corrupt_record").collect()]
print(f"orders in all: {history.count()}, of which unreadable: {unreadable}")
