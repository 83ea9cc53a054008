"""`rookery pipelines`: files that say what Spark reads, makes and writes; run, watched over, and looked at.

Spark is imported only by what runs in it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rookery.cli.commands import Yes, command, family, time_option
from rookery.cli.output import FAILED, MISUSED, Output, ago, confirm, note
from rookery.config.settings import Settings
from rookery.errors import AlreadyExists, InvalidPipeline
from rookery.lake.pipelines import RUNNING, Place, Status, statuses

if TYPE_CHECKING:
    from rookery.pipelines.planning import Plan
    from rookery.pipelines.spec import Pipeline

app = family("Pipelines on Spark: from streams and queues through SQL and Python to streams, queues and lake tables.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline's YAML file.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name.")]
Root = Annotated[
    Path | None, typer.Option("--root", metavar="DIR", help="Checkpoints, state and tables; ROOKERY_PIPELINES_DIR.")
]
Master = Annotated[
    str, typer.Option("--master", help="Another engine than the file's: local[2], spark://…, sc://…, yarn, k8s://….")
]
Endpoint = Annotated[str, typer.Option("--url", metavar="URL", help="Another broker than the file's.")]
Once = Annotated[bool, typer.Option("--once", help="Do what is there now, then end.")]

COLUMNS: Final[dict[str, Any]] = {
    "name": "name",
    "state": "state",
    "engine": "engine",
    "batch": "progress.batch",
    "rows/s": "progress.rows_per_sec",
    "lag": "progress.lag",
    "batch ms": "progress.batch_ms",
    "rows": "progress.total_rows",
    "restarts": "restarts",
    "seen": lambda row: ago(row["updated_ms"]),
    "error": lambda row: row["error"] and row["error"]["message"].partition("\n")[0][:120],
}


def root_of(said: Path | None) -> Path:
    return said if said is not None else Settings.load({}, os.environ, Path.cwd()).pipelines_dir


def chosen(file: Path, url: str, master: str) -> Pipeline:
    from rookery.pipelines.spec import load

    return load(file).at(endpoint=url, master=master)


def planned(pipeline: Pipeline, root: Path) -> Plan:
    from rookery.pipelines.planning import plan
    from rookery.pipelines.worker import open_session

    spark = open_session(pipeline.engine, root)
    try:
        return plan(pipeline, root, spark)
    finally:
        spark.stop()


@command(app, "new", "rookery pipelines new orders-eu --stream orders", "rookery pipelines new big --dir pipelines")
def new(
    out: Output,
    name: NameArgument,
    stream: Annotated[str, typer.Option("--stream", help="What it reads.")] = "orders",
    folder: Annotated[Path, typer.Option("--dir", help="Where the file goes.")] = Path(),
) -> None:
    """Write a file to begin with: one that runs, with what else there is in comments."""
    from rookery.pipelines.template import new_file

    path = folder / f"{name}.yaml"
    if path.exists():
        raise AlreadyExists(f"{path} is there already", argument="name")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(new_file(name, stream), encoding="utf-8")
    out.done(f"{path} is written; `rookery pipelines run {path}` runs it", {"file": str(path)})


@command(app, "validate", "rookery pipelines validate orders-eu.yaml", "rookery pipelines validate pipelines/")
def validate(
    out: Output,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files, or folders of them.")],
) -> None:
    """Check files. Needs neither a broker nor Spark; every mistake is told with its line and what to do."""
    from rookery.pipelines import planning
    from rookery.pipelines.spec import load, load_folder

    good: list[Pipeline] = []
    bad: list[InvalidPipeline] = []
    for file in files:
        if file.is_dir():
            found, mistakes = load_folder(file)
            good += found
            bad += mistakes
            continue
        try:
            good.append(load(file))
        except InvalidPipeline as error:
            bad.append(error)
    for pipeline in list(good):
        try:
            planning.validate(pipeline)
        except InvalidPipeline as error:
            good.remove(pipeline)
            bad.append(error)
    rows = [{"file": str(each.file), "name": each.name, "mistake": None} for each in good]
    rows += [{"file": str(error).partition(":")[0], "name": None, "mistake": str(error)} for error in bad]
    if out.as_json:
        out.json(rows)
    for row in rows:
        if not out.as_json:
            print(row["mistake"] or f"{row['file']}: {row['name']} is valid")
    if bad:
        raise typer.Exit(MISUSED)


@command(
    app, "plan", "rookery pipelines plan orders-eu.yaml", "rookery pipelines plan orders-eu.yaml --master sc://spark"
)
def plan(out: Output, file: File, root: Root = None, master: Master = "") -> None:
    """Ask Spark whether it all fits, and show the columns that come out and Spark's plan. Needs no broker."""
    pipeline = chosen(file, "", master)
    found = planned(pipeline, root_of(root))
    if out.as_json:
        out.json({"sources": found.sources, "columns": found.columns, "plan": found.physical})
        return
    rows = [{"column": name, "type": kind} for name, kind in found.columns.items()]
    out.table(rows, {"column": "column", "type": "type"})
    print(f"\nto {pipeline.sink.kind} {pipeline.sink.target}, {pipeline.sink.mode}\n\n{found.physical}")


@command(app, "run", "rookery pipelines run orders-eu.yaml", "rookery pipelines run orders-eu.yaml --once --json")
def run(
    out: Output, file: File, root: Root = None, once: Once = False, url: Endpoint = "", master: Master = ""
) -> None:
    """Run one pipeline here, with its progress, until it ends or is stopped (Ctrl-C, `stop`)."""
    from rookery.pipelines.jobs import PipelineJob
    from rookery.pipelines.worker import LOG, Worker

    watch = Watch(out)
    place = root_of(root)
    worker = Worker([PipelineJob(chosen(file, url, master))], place, once=once, heard=watch.heard)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, worker.stop)
    code = worker.run()
    if code:
        note(f"rookery: what Spark logged is in {place / LOG}")
        # threads of a session that is gone must not keep the process
        os._exit(code)


@command(
    app,
    "up",
    "rookery pipelines up pipelines/",
    "rookery pipelines up pipelines/ --once",
    "rookery pipelines up --builtin",
)
def up(
    out: Output,
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="The folder of files.")] = None,
    builtin: Annotated[
        bool, typer.Option("--builtin", help="Those that come with the broker: the lifecycle and the archive.")
    ] = False,
    root: Root = None,
    once: Once = False,
    url: Endpoint = "",
    master: Master = "",
) -> None:
    """Run all pipelines of a folder, start again what dies, and take up files as they change."""
    from rookery.pipelines.supervisor import Supervisor
    from rookery.pipelines.worker import BUILTIN

    if folder is None and not builtin:
        raise typer.BadParameter("name a folder of files, or say --builtin.", param_hint="DIR")
    extra: list[str] = []
    if builtin:
        from rookery.pipelines.builtin.jobs import NAMES

        extra = [f"{BUILTIN}{name}" for name in NAMES]
    watch = Watch(out)
    supervisor = Supervisor(
        folder, root_of(root), endpoint=url, master=master, once=once, extra=extra, heard=watch.heard, said=note
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.stop)
    raise typer.Exit(supervisor.run())


@command(app, "status", "rookery pipelines status", "rookery pipelines status orders-eu --json")
def status(
    out: Output,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Without one: of all.")] = None,
    root: Root = None,
) -> None:
    """How pipelines are doing: rows a second, lag, batch times, restarts and the last error."""
    import msgspec

    place = root_of(root)
    if name is not None:
        out.record(msgspec.to_builtins(Place(place, name).status()))
        return
    out.table(msgspec.to_builtins(statuses(place)), COLUMNS, empty=f"There are no pipelines below {place}.")


@command(app, "stop", "rookery pipelines stop orders-eu", "rookery pipelines stop orders-eu --wait 2m")
def stop(
    out: Output,
    name: NameArgument,
    root: Root = None,
    wait: Annotated[int, time_option("--wait", "For its end.")] = "1m",  # type: ignore[assignment]
) -> None:
    """End a pipeline after the batch it is at. It stays so until `run` or `up` is started again."""
    place = Place(root_of(root), name)
    if place.status().state not in RUNNING:
        out.done(f"{name} is not running", {"name": name, "state": place.status().state})
        return
    place.want_stop(True)
    until = time.monotonic() + wait / 1000
    while place.status().state in RUNNING:
        if time.monotonic() > until:
            note(f"rookery: {name} is still at its batch; it ends after it")
            raise typer.Exit(FAILED)
        time.sleep(0.2)
    out.done(f"{name} is {place.status().state}", {"name": name, "state": place.status().state})


@command(
    app, "reset", "rookery pipelines reset orders-eu --yes", "rookery pipelines reset orders-eu --drop-table orders"
)
def reset(
    out: Output,
    name: NameArgument,
    root: Root = None,
    drop_table: Annotated[list[str], typer.Option("--drop-table", help="A lake table that goes too.")] = [],  # noqa: B006
    yes: Yes = False,
) -> None:
    """Forget how far a pipeline has read and its state: it begins anew, and writes again what it wrote."""
    import shutil

    place = Place(root_of(root), name)
    if place.identity() is None:
        place.status()
    confirm(f"Let {name} begin anew{' and drop ' + ', '.join(drop_table) if drop_table else ''}?", yes)
    tables = [place.table(table) for table in drop_table]
    place.reset()
    for table in tables:
        shutil.rmtree(table, ignore_errors=True)
    out.done(f"{name} begins anew at its next start", {"name": name, "dropped": [str(table) for table in tables]})


@command(
    app,
    "backfill",
    "rookery pipelines backfill orders-eu.yaml --from 2026-01-01T00:00:00Z --to 2026-01-31T00:00:00Z",
    "rookery pipelines backfill orders-eu.yaml --from earliest --id january",
)
def backfill(
    out: Output,
    file: File,
    start: Annotated[str, typer.Option("--from", help="earliest, a time, or offsets as JSON.")] = "earliest",
    stop: Annotated[str, typer.Option("--to", help="latest, a time, or offsets as JSON; not included.")] = "latest",
    id: Annotated[str, typer.Option("--id", help="Of the job, which happens once.")] = "",
    root: Root = None,
    url: Endpoint = "",
    master: Master = "",
) -> None:
    """Run a pipeline over the past of its streams, as one job: run again, it adds nothing."""
    from rookery.pipelines import backfill as jobs
    from rookery.pipelines.worker import open_session

    pipeline = chosen(file, url, master)
    place = root_of(root)
    job = jobs.prepare(pipeline, place, start=start, stop=stop, id=id)
    note(f"job {job.id}: {job.rows} records")
    began = time.monotonic()
    spark = open_session(pipeline.engine, place)
    try:
        jobs.run(pipeline, place, spark, job)
    finally:
        spark.stop()
    took = time.monotonic() - began
    out.done(f"{job.rows} records in {took:.0f} s", {"id": job.id, "records": job.rows, "seconds": round(took, 1)})


@command(app, "export", "rookery pipelines export orders-eu.yaml --format sdp --out orders-eu-sdp")
def export(
    out: Output,
    file: File,
    target: Annotated[Path, typer.Option("--out", metavar="DIR", help="The project's folder.")],
    format: Annotated[str, typer.Option("--format", help="sdp: Spark Declarative Pipelines.")] = "sdp",
    root: Root = None,
) -> None:
    """Write a pipeline as a project of Spark Declarative Pipelines, for `spark-pipelines run`."""
    from rookery.pipelines.sdp import write_project

    if format != "sdp":
        raise typer.BadParameter("there is sdp.", param_hint="--format")
    if target.exists() and any(target.iterdir()):
        raise AlreadyExists(f"{target} is there already and not empty", argument="out")
    pipeline = chosen(file, "", "")
    place = root_of(root)
    columns = planned(pipeline, place).rows if pipeline.sink.kind != "table" else {}
    files = write_project(pipeline, target, place, list(columns))
    out.done(f"{target} is written; run `spark-pipelines run` in it", {"files": [str(each) for each in files]})


class Watch:
    """Prints how pipelines are doing as they tell it: lines, or JSON lines."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._errors: dict[str, int] = {}

    def heard(self, status: Status) -> None:
        if self._out.as_json:
            self._out.line(status)
            return
        print(news(status), flush=True)
        error = status.error
        if (
            error is not None
            and self._errors.get(status.name) != error.at_ms
            and status.state in ("failed", "restarting")
        ):
            self._errors[status.name] = error.at_ms
            note(f"rookery: {status.name}: {error.message}")


def news(status: Status) -> str:
    """A line about a pipeline."""
    found = status.progress
    parts = [time.strftime("%H:%M:%S"), status.name, status.state]
    if status.state == "running" and found.batch >= 0:
        lag = "" if found.lag is None else f", lag {found.lag:,}"
        parts.append(
            f"batch {found.batch}: {found.rows:,} rows in {found.batch_ms:,} ms, {found.rows_per_sec:,.0f}/s{lag}"
        )
    if status.next_ms:
        parts.append(f"again {ago(status.next_ms)}")
    if status.state in ("finished", "stopped"):
        parts.append(f"{found.total_rows:,} rows in all")
    return "  ".join(parts)
