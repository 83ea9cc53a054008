"""The file that `rookery pipelines new` writes: one that runs, with what else there is in comments."""

from __future__ import annotations

from typing import Final

TEMPLATE: Final = """\
# {name}: what is read, made of it and written. `rookery pipelines validate` checks this file,
# `plan` asks Spark about it, `run` runs it. docs/pipelines.md has all entries.
name: {name}

# The broker. Without this it is ROOKERY_URL with ROOKERY_API_KEY, or the one on this machine.
# broker: {{endpoint: "https://broker:8443", tokenEnv: ROOKERY_API_KEY}}

source:
  stream: {source}
  startingOffsets: earliest

transform:
  - sql: |
      SELECT offset, timestamp, CAST(value AS STRING) AS body, routing_key
      FROM {{input}}
#  - python: my_steps:enrich          # def enrich(frame, params): return frame.withColumn(…)
#    params: {{limit: 10}}

expect:
  - {{name: has_body, check: "length(body) > 0", on_fail: drop}}    # drop, fail or quarantine
# quarantine: {{stream: {name}-quarantine}}

sink:
  table: {table}                     # or stream: …, exchange: …, queue: …, with format: json
#  mode: merge                       # append, merge (with keys), replace
#  keys: [id]
#  partitionBy: [date]

trigger: {{interval: 1s}}             # or {{availableNow: true, every: 10m}} or {{…, cron: "*/10 * * * *"}}
engine: {{master: "local[*]"}}        # local-cluster[2,1,1024], spark://…, sc://…, yarn, k8s://…
"""


def new_file(name: str, source: str) -> str:
    return TEMPLATE.format(name=name, source=source, table=name.replace("-", "_").replace(".", "_"))
