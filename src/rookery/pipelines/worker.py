"""A process with one Spark engine and the jobs that run in it, each in a thread and a session of its own.

`rookery pipelines run` is such a process for one file; `up` starts one for each engine and watches over them. It ends
when its jobs have ended, when it is told to (SIGTERM, SIGINT), or when whoever started it is gone.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rookery.errors import EngineLost, RookeryError
from rookery.lake.pipelines import RUNNING, LastError, Place, Status, now_ms
from rookery.pipelines.jobs import Job, PipelineJob
from rookery.pipelines.runner import Runner, reason
from rookery.pipelines.spec import Engine, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAILED: Final = 1
"""Exit code: a job has failed for good; the others have ended."""
LOST: Final = 75
"""Exit code: there is no Spark, or no more; another process may have one."""

DOUBTED_AFTER: Final = 3
"""So many failures in a row of every job may be the engine's: a Java can be beyond repair and still answer."""

LOG: Final = "spark.log"
"""Where Spark logs, below the root: errors are told in words, and this is for whoever wants to know more."""

BUILTIN: Final = "builtin:"
"""What stands before the name of a job that is no file."""


def open_session(engine: Engine, root: str | Path) -> SparkSession:
    """The session for an engine; several jobs share its cores fairly."""
    from rookery.spark import session

    # pyspark logs each error that it raises, with all of Java's trace; here errors are told in words
    logging.getLogger("SQLQueryContextLogger").disabled = True
    conf: dict[str, Any] = dict(engine.conf)
    if engine.master.startswith("sc://"):
        return session(engine.master, name="rookery-pipelines", **conf)
    conf = {"spark.scheduler.mode": "FAIR", "spark.ui.enabled": "false"} | conf
    # what Java keeps there halves the time of each start
    kept = Path(root) / "cache"
    return session(engine.master, name="rookery-pipelines", class_cache=kept, log_file=Path(root) / LOG, **conf)


class Worker:
    """Jobs of one engine. If `supervised`, another process takes over from one whose engine is no good.

    `again`: this one has taken over.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        root: str | Path,
        *,
        once: bool = False,
        heard: Callable[[Status], None] | None = None,
        supervised: bool = False,
        again: bool = False,
    ) -> None:
        self._jobs = jobs
        self._root = root
        self._once = once
        self._heard = heard
        self._supervised = supervised
        self._again = again
        self._stopping = threading.Event()
        self._runners: list[Runner] = []
        self._lost = False

    def stop(self, *_: object) -> None:
        """End all jobs in order. May be called from anywhere, also as the handler of a signal."""
        self._stopping.set()
        for runner in self._runners:
            runner.stop()

    def run(self) -> int:
        """Run all jobs to their end; returns an exit code."""
        try:
            spark = open_session(self._jobs[0].engine, self._root)
        except Exception as error:  # noqa: BLE001  Java and Spark have many ways not to start
            self._no_engine(error)
            return LOST
        # what `session` prepares where it can: streams of a server's source must not begin at the same time
        turn = threading.Lock() if _remote(self._jobs[0]) else None
        self._runners = [
            Runner(
                job,
                self._root,
                _own(spark, job),
                once=self._once,
                heard=self._heard,
                turn=turn,
                doubted=self._doubted,
                again=self._again,
            )
            for job in self._jobs
        ]
        if self._stopping.is_set():
            self.stop()
        threads = [threading.Thread(target=self._run, args=(runner,)) for runner in self._runners]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            # short waits, because a signal is heard only between them
            for thread in threads:
                thread.join(0.2)
        if self._lost:
            # a session without its JVM cannot be stopped, and threads of py4j would keep the process
            return LOST
        for runner in self._runners:
            if _remote(runner.job):
                # the others go with the engine
                runner.spark.stop()
        spark.stop()
        return FAILED if any(runner.status.state == "failed" for runner in self._runners) else 0

    def _run(self, runner: Runner) -> None:
        if not _remote(runner.job):
            _enter(runner.spark, runner.job.name)
        try:
            runner.run()
        except EngineLost:
            self._lost = True
            self.stop()
        except RookeryError as error:
            runner.status.state = "failed"
            runner.status.error = LastError(str(error), now_ms())
            if self._heard is not None:
                self._heard(runner.status)

    def _doubted(self) -> bool:
        """Whether it is likely that no job can go on with this engine, and another can be had."""
        at_work = [runner for runner in self._runners if runner.status.state in RUNNING]
        return self._supervised and all(runner.failures >= DOUBTED_AFTER for runner in at_work)

    def _no_engine(self, error: Exception) -> None:
        for job in self._jobs:
            status = Status(job.name, "failed", job.file, job.engine.master)
            status.error = LastError(f"Spark does not start on {job.engine.master}: {reason(error)}", now_ms())
            Place(self._root, job.name).tell(status)
            if self._heard is not None:
                self._heard(status)


def _remote(job: Job) -> bool:
    return job.engine.master.startswith("sc://")


def _own(spark: SparkSession, job: Job) -> SparkSession:
    """A session of the same engine for one job, because planning is not safe for several threads of one session."""
    if not _remote(job):
        return spark.newSession()
    # a new session of Connect would not have the settings of this one; only Connect's class can be cloned
    remote: Any = spark
    own: SparkSession = remote.cloneSession()
    return own


def _enter(spark: SparkSession, pool: str) -> None:
    """Let what this thread asks of Spark belong to its own session, and take its turns in a pool of its own."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
    # where Java looks a data source up by its name: the thread's session, else the first one, which may not know it yet
    jvm: Any = spark._jvm
    spark._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)


def find_job(text: str, root: str, endpoint: str = "", master: str = "") -> Job:
    """The job of a file, or one that is built in."""
    if text.startswith(BUILTIN):
        from rookery.pipelines.builtin.jobs import find

        return find(text.removeprefix(BUILTIN), root, endpoint, master)
    return PipelineJob(load(text).at(endpoint=endpoint, master=master))


def _watch_parent(worker: Worker) -> None:
    """Stop when whoever started this process is gone, so that nobody runs unseen."""
    parent = os.getppid()

    def watch() -> None:
        wait = threading.Event()
        while os.getppid() == parent:
            wait.wait(1.0)
        worker.stop()

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: Sequence[str] | None = None) -> int:
    """What `up` starts."""
    parser = argparse.ArgumentParser(prog="rookery.pipelines.worker")
    parser.add_argument("--root", required=True)
    parser.add_argument("--endpoint", default="")
    parser.add_argument("--master", default="")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--supervised", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("files", nargs="+")
    said = parser.parse_args(arguments)
    jobs = [find_job(file, said.root, said.endpoint, said.master) for file in said.files]
    worker = Worker(jobs, said.root, once=said.once, supervised=said.supervised, again=said.again)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, worker.stop)
    _watch_parent(worker)
    return worker.run()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # threads of a lost session must not keep the process
    os._exit(code)
