"""A pipeline as a project of Spark Declarative Pipelines: `spark-pipelines run` runs it without us.

Its runs take what is available and end; it has no merge and no quarantine table, and streaming tables are Spark's own,
not Delta's. What cannot be said there is refused here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rookery.errors import InvalidPipeline
from rookery.pipelines.spec import INPUT, Pipeline, Sink
from rookery.pipelines.writing import MESSAGE

HEAD: Final = '''"""Written by `rookery pipelines export` from {file}."""

import os

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

{imports}spark = SparkSession.active()
BROKER = {broker}
{token}

def read(**options):
    return spark.readStream.format("rookery").options(**BROKER, **options).load()

'''


def write_project(pipeline: Pipeline, folder: Path, root: Path, columns: Sequence[str]) -> list[Path]:
    """Write the project; returns its files. `columns` are those of the rows, as `plan` finds them."""
    _check(pipeline)
    steps = folder / "transformations"
    steps.mkdir(parents=True, exist_ok=True)
    name = pipeline.name.replace("-", "_").replace(".", "_")
    storage = (root / "sdp" / pipeline.name).resolve().as_uri()
    made = [folder / "spark-pipeline.yml", steps / f"{name}.py"]
    made[0].write_text(
        f"name: {name}\nstorage: {storage}\nlibraries:\n  - glob:\n      include: transformations/**\n"
        "configuration:\n  spark.sql.session.timeZone: UTC\n",
        encoding="utf-8",
    )
    made[1].write_text(_program(pipeline, name, columns), encoding="utf-8")
    for step in pipeline.steps:
        if step.function:
            module = step.function.partition(":")[0]
            beside = Path(pipeline.file).resolve().parent / f"{module}.py"
            if beside.exists():
                made.append(Path(shutil.copy(beside, folder / beside.name)))
    return made


def _check(pipeline: Pipeline) -> None:
    sink = pipeline.sink
    if sink.mode != "append":
        raise InvalidPipeline(
            f"{pipeline.file}:{sink.line}: sink.mode: declarative pipelines append; they have no {sink.mode}"
        )
    if pipeline.quarantine is not None and pipeline.quarantine.kind == "table":
        raise InvalidPipeline(
            f"{pipeline.file}:{pipeline.quarantine.line}: quarantine: declarative pipelines need a stream or queue"
        )
    for source in pipeline.sources.values():
        if source.table:
            raise InvalidPipeline(f"{pipeline.file}:{source.line}: declarative pipelines do not read Delta tables")


def _program(pipeline: Pipeline, name: str, columns: Sequence[str]) -> str:
    broker = dict(pipeline.broker)
    variable = broker.pop("tokenEnv", "")
    functions = [step.function for step in pipeline.steps if step.function]
    imports = "".join(f"import {each.partition(':')[0]}\n" for each in dict.fromkeys(functions))
    text = HEAD.format(
        file=Path(pipeline.file).name,
        imports=f"{imports}\n" if imports else "",
        broker=json.dumps(broker),
        token=f'BROKER["token"] = os.environ[{json.dumps(variable)}]\n' if variable else "",
    )
    text += "\ndef rows():\n" + _body(pipeline) + _expectations(pipeline)
    if pipeline.sink.kind == "table":
        table = pipeline.sink.target.removeprefix("lake.")
        text += f"\n\n@dp.table(name={json.dumps(table)})\ndef {name}():\n    return good(rows())\n"
    else:
        text += _flow(pipeline.sink, name, "good", columns)
    if pipeline.quarantine is not None and _held(pipeline):
        text += _flow(pipeline.quarantine, f"{name}_quarantine", "held", columns)
    return text


def _body(pipeline: Pipeline) -> str:
    lines = []
    for name, source in pipeline.sources.items():
        lines.append(f"{name} = read(**{json.dumps(dict(source.options))})")
    known = list(pipeline.sources)
    for step in pipeline.steps:
        if step.sql:
            # a session of declarative pipelines cannot make views, and tables as arguments need none
            used = [each for each in (*known, INPUT) if f"{{{each}}}" in step.sql]
            tables = ", ".join(f"{each}={each}" for each in dict.fromkeys(used))
            lines.append(f"{INPUT} = spark.sql({step.sql.strip()!r}, {tables})")
        else:
            module, _, function = step.function.partition(":")
            lines.append(f"{INPUT} = {module}.{function}({INPUT}, {dict(step.params)!r})")
        if step.watermark:
            lines.append(f"{INPUT} = {INPUT}.withWatermark{step.watermark!r}")
        if step.name:
            lines.append(f"{step.name} = {INPUT}")
            known.append(step.name)
    lines.append(f"return {INPUT}")
    return "".join(f"    {line}\n" for line in lines)


def _held(pipeline: Pipeline) -> list[str]:
    return [f"coalesce({each.check}, false)" for each in pipeline.expectations if each.on_fail == "quarantine"]


def _expectations(pipeline: Pipeline) -> str:
    good = []
    for each in pipeline.expectations:
        holds = f"coalesce({each.check}, false)"
        if each.on_fail == "fail":
            message = f"a row fails the expectation {each.name}".replace("'", "''")
            holds = f"if({holds}, true, raise_error('{message}'))"
        good.append(holds)
    where = "".join(f".where({holds!r})" for holds in good)
    text = f"\n\ndef good(frame):\n    return frame{where}\n"
    held = _held(pipeline)
    if held:
        text += f"\n\ndef held(frame):\n    return frame.where({' NOT (' + ' AND '.join(held) + ')'!r})\n"
    return text


def _flow(sink: Sink, name: str, which: str, columns: Sequence[str]) -> str:
    options = {**sink.options, sink.kind: sink.target}
    shaped = ""
    if sink.json:
        # what a function of a flow returns is not to be looked at there, so its columns are named here
        inside = ", ".join(f"`{each}`" for each in columns if each not in MESSAGE or which == "held")
        kept = [f"`{each}`" for each in columns if each in MESSAGE and which == "good"]
        shaped = f".selectExpr({', '.join(map(repr, [f'to_json(struct({inside})) AS value', *kept]))})"
    return (
        f'\n\ndp.create_sink("{name}_sink", "rookery", {{**BROKER, **{json.dumps(options)}}})\n'
        f'\n\n@dp.append_flow(target="{name}_sink")\n'
        f"def {name}():\n    return {which}(rows()){shaped}\n"
    )
