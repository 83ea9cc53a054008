"""What the tests of real clients share: a server for each module, and the client of Node."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interop.server import ServerProcess, serving
from tests.interop.spark_cluster import EXECUTORS, SPECULATING, standalone
from tests.interop.spark_process import CLASSES, Driver, driving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AMQPLIB = "amqplib@2"
INSTALL_SEC = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Ends in order, and no connection of the module's tests met a defect."""
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running
        assert running.stop() == 0
        assert [line for line in running.log if line["event"] == "connection_failed"] == []


@pytest.fixture(scope="session")
def amqplib(need_program: Callable[[str], str]) -> Path:
    """The folder of Node's modules, with amqplib in it: beside the environment's own packages, kept between runs."""
    npm = need_program("npm")
    folder = Path(sys.prefix) / "share" / "rookery-tests" / AMQPLIB
    modules = folder / "node_modules"
    if not (modules / "amqplib" / "package.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--no-save", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error"]
        command = [npm, "install", *options, f"--prefix={folder}", AMQPLIB]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SEC, check=False)
        if done.returncode:
            message = f"npm cannot install {AMQPLIB}: {done.stderr.strip()}"
            if os.environ.get("CI") == "true":
                pytest.fail(message)
            pytest.skip(message)
    return modules


@pytest.fixture(scope="session")
def spark(need_program: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of the connector: starting one takes longer than most of them."""
    need_program("java")
    import rookery.spark

    # Spark's own processes on the driver have what this one has when Spark starts
    os.environ["ROOKERY_TESTS_TOKEN"] = "secret"
    folder = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # to archive what it loads would make this Java slow, and nobody starts another after it
        cache = CLASSES if any(CLASSES.glob("*.jsa")) else None
        made = rookery.spark.session("local[2]", profile="test", class_cache=cache, spark_sql_warehouse_dir=folder)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def need_java(need_program: Callable[[str], str]) -> str:
    return need_program("java")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, need_java: str) -> Iterator[Driver]:
    """A driver with two executors, which are processes of their own on hosts of their own."""
    folder = tmp_path_factory.mktemp("cluster")
    with standalone(folder) as master, driving(folder, master, **EXECUTORS, **SPECULATING) as driver:
        yield driver
