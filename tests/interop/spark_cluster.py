"""Clusters and servers of Spark, from the pip package alone: a master with workers, and Spark Connect."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rookery.spark.shipping import connector
from tests.interop.spark_process import home as spark_home

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
PATIENCE_SEC = 240

EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.driver.host": "127.0.0.1",
}
SPECULATING = {
    "spark.speculation": True,
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": 0.5,
    "spark.speculation.multiplier": 1.2,
    "spark.speculation.minTaskRuntime": "500ms",
}


def environment(home: Path, python_path: str) -> dict[str, str]:
    """What daemons see: nothing of this package, which drivers have to bring, unless it is given to them."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    more = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": QUICK, "SPARK_HOME": str(home)}
    if python_path:
        more["PYTHONPATH"] = python_path
    return {**kept, **more, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


@contextmanager
def started(folder: Path, name: str, command: list[str], sign: str, python_path: str = "") -> Iterator[str]:
    """A program of Spark, as soon as its log has a sign of life; what the sign's group matched."""
    home = spark_home(folder)
    log = folder / f"{name}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [str(home / "bin" / command[0]), *command[1:]],
            cwd=folder,
            env=environment(home, python_path),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + PATIENCE_SEC
        while not (found := re.search(sign, log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield found[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """The address of a master with two workers, on hosts of their own: on one host no attempts of a task race."""
    master = ["spark-class", "org.apache.spark.deploy.master.Master", *_at("127.0.0.1"), "--port", "0"]
    with ExitStack() as stack:
        url = stack.enter_context(started(folder, "master", master, r"Starting Spark master at (spark://\S+)"))
        for number, host in enumerate(("127.0.0.1", "127.0.0.2")):
            worker = ["spark-class", "org.apache.spark.deploy.worker.Worker", *_at(host), "--cores", "1"]
            worker += ["--memory", "1g", "--work-dir", str(folder / f"work-{number}"), url]
            stack.enter_context(started(folder, f"worker-{number}", worker, r"(Successfully registered with master)"))
        yield url


def _at(host: str) -> list[str]:
    return ["--host", host, "--webui-port", "0"]


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A server of Spark Connect with a local engine and the connector; where clients find it."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
        "spark.log.level": "INFO",
    }
    command = ["spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += ["--master", "local[2]", "--driver-memory", "700m", "--driver-java-options", QUICK]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    sign = r"Spark Connect server started at: \S*?(127\.0\.0\.1:\d+)"
    with started(folder, "connect", [*command, "spark-internal"], sign, str(connector(folder))) as address:
        yield f"sc://{address}"
