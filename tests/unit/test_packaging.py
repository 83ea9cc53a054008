"""The package as it is built and installed: the list of hot modules, the layers, the metadata, the fallbacks."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import rookery
from rookery import _compiled

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def modules() -> set[str]:
    """Every module of the source tree, packages by their own name."""
    found = set()
    for path in (SOURCE / "rookery").rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def layer_modules() -> set[str]:
    contract = next(c for c in PYPROJECT["tool"]["importlinter"]["contracts"] if c["name"] == "layers")
    return {f"rookery.{name}" for layer in contract["layers"] for name in re.findall(r"[\w.]+", layer)}


def test_hot_modules_are_files_of_the_source_tree() -> None:
    assert set(_compiled.HOT_MODULES) <= modules()
    assert len(set(_compiled.HOT_MODULES)) == len(_compiled.HOT_MODULES)


def test_every_module_stands_in_a_layer() -> None:
    layers = layer_modules()
    homeless = {
        module
        for module in modules() - {"rookery", "rookery.store"}
        if not any(module == layer or module.startswith(f"{layer}.") for layer in layers)
    }
    assert not homeless, "name them in [tool.importlinter] of pyproject.toml"


@pytest.mark.row("S3-15")
def test_nothing_that_only_unix_has_is_imported_on_the_way_in() -> None:
    """Such modules are imported in functions, or where the platform was asked for first."""
    unix = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "readline", "syslog", "posix", "uvloop"}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & unix, path


def test_the_version_is_said_once() -> None:
    assert rookery.__version__ == PYPROJECT["project"]["version"]


def test_the_installed_metadata_agrees() -> None:
    try:
        installed = importlib.metadata.distribution("rookery")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed: this is the bare source tree")
    assert installed.version == rookery.__version__
    points = {(point.group, point.name): point.value for point in installed.entry_points}
    assert points == {("console_scripts", "rookery"): "rookery.cli:main", ("pytest11", "rookery"): "rookery.testing"}


def test_the_changelog_has_a_place_for_the_next_change() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_types_are_shipped() -> None:
    assert (Path(rookery.__file__).parent / "py.typed").exists()


def test_report_names_each_hot_module_as_it_is_loaded() -> None:
    import rookery.format.model

    from_library = rookery.format.model.__file__.endswith(tuple(EXTENSION_SUFFIXES))
    assert _compiled.report() == dict.fromkeys(_compiled.HOT_MODULES, from_library)
    assert _compiled.compiled is from_library


def test_mypy_and_librt_are_the_same_for_build_run_and_development(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "build_backend"))
    import rookery_compiler

    monkeypatch.delenv("ROOKERY_PURE", raising=False)
    monkeypatch.setenv("ROOKERY_REQUIRE_COMPILED", "1")
    mypy, librt = rookery_compiler.compiler_requires()
    assert mypy in PYPROJECT["project"]["optional-dependencies"]["dev"]
    assert any(dependency.startswith(librt) for dependency in PYPROJECT["project"]["dependencies"])


@pytest.mark.parametrize(
    "setting",
    [{"ROOKERY_PURE": "1"}, {"CC": "no-such-compiler"}],
    ids=["asked for pure", "no compiler"],
)
def test_mypy_is_not_asked_for_where_it_would_not_serve(
    setting: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "build_backend"))
    import rookery_compiler

    for name in ("ROOKERY_PURE", "ROOKERY_REQUIRE_COMPILED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    assert rookery_compiler.compiler_requires() == []


def build_wheel(tmp_path: Path, **setting: str) -> Path:
    """A wheel of a copy of the tree, built with the tools at hand and no network."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("src", "build_backend"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tree)
    kept = {k: v for k, v in os.environ.items() if k not in ("ROOKERY_PURE", "ROOKERY_REQUIRE_COMPILED", "PYTHONPATH")}
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "-w",
        "out",
        ".",
    ]
    subprocess.run(command, cwd=tree, env=kept | setting, check=True, capture_output=True, text=True)
    (wheel,) = (tree / "out").glob("*.whl")
    return wheel


def runs_compiled(wheel: Path, tmp_path: Path) -> bool:
    """Install `wheel` beside everything else and ask it."""
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    program = (
        "from rookery import _compiled as c\n"
        "from rookery.format import model as m\n"
        "print(c.__file__, m.__file__, c.compiled)"
    )
    environment = {**os.environ, "PYTHONPATH": str(target)}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    file, model, compiled = result.stdout.split()
    assert file.startswith(str(target))
    assert model.endswith(".py") is (compiled == "False")
    return compiled == "True"


@pytest.mark.long
@pytest.mark.parametrize(
    "setting",
    [{"ROOKERY_PURE": "1"}, {"CC": "/bin/false"}],
    ids=["asked for pure", "broken compiler"],
)
@pytest.mark.skipif(os.name == "nt", reason="a compiler is named by CC on POSIX only")
def test_without_a_compiler_the_install_succeeds_and_runs_the_plain_files(
    setting: dict[str, str], tmp_path: Path
) -> None:
    wheel = build_wheel(tmp_path, **setting)
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(tuple(EXTENSION_SUFFIXES))]
    assert not runs_compiled(wheel, tmp_path)


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="a compiler is named by CC on POSIX only")
def test_a_required_compilation_that_fails_fails_the_install(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failure:
        build_wheel(tmp_path, CC="/bin/false", ROOKERY_REQUIRE_COMPILED="1")
    assert "ROOKERY_REQUIRE_COMPILED=1, but the C compiler failed" in failure.value.stderr + failure.value.stdout


@pytest.mark.long
def test_with_a_compiler_every_hot_module_and_the_library_they_share_are_installed(tmp_path: Path) -> None:
    if shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is None:
        pytest.skip("no C compiler")
    wheel = build_wheel(tmp_path, ROOKERY_REQUIRE_COMPILED="1")
    suffix = EXTENSION_SUFFIXES[0]
    libraries = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(suffix)}
    hot = {module.replace(".", "/") + suffix for module in _compiled.HOT_MODULES}
    assert libraries == hot | {f"rookery__mypyc{suffix}"}
    assert runs_compiled(wheel, tmp_path)


# Stands for the C compiler, also as a linker: notes when it begins and ends, and refuses commands that match REFUSES.
COMPILER = """#!/bin/sh
echo begin >>"$NOTES"
sleep 0.05
echo end >>"$NOTES"
case "$*" in $REFUSES) echo "refused" >&2; exit 1;; esac
while [ "$1" != -o ]; do shift; done
: >"$2"
"""


def build_small(tmp_path: Path, refuses: str, **setting: str) -> subprocess.CompletedProcess[str]:
    """A wheel in `out` of a package with two hot modules, made by our setup.py, mypyc and a compiler of two lines."""
    pytest.importorskip("mypyc")
    package = tmp_path / "src" / "rookery"
    package.mkdir(parents=True)
    for name in ("setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "rookery"\nversion = "1"\n[tool.setuptools.packages.find]\nwhere = ["src"]\n'
    )
    (tmp_path / "setup.cfg").write_text("[build_ext]\nparallel = 2\n")
    (package / "__init__.py").touch()
    (package / "_compiled.py").write_text('HOT_MODULES = ("rookery.first", "rookery.second")\n')
    (package / "first.py").write_text("def one() -> int:\n    return 1\n")
    (package / "second.py").write_text(
        "from rookery.first import one\n\n\ndef two() -> int:\n    return one() + one()\n"
    )
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if k not in ("ROOKERY_PURE", "ROOKERY_REQUIRE_COMPILED", "PYTHONPATH")}
    environment = {**kept, "CC": str(compiler), "NOTES": str(tmp_path / "notes"), "REFUSES": refuses, **setting}
    command = [sys.executable, "setup.py", "bdist_wheel", "-d", "out"]
    return subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)


def libraries_in(folder: Path) -> set[str]:
    (wheel,) = folder.glob("*.whl")
    return {name.partition(".")[0] for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".so", ".pyd"))}


needs_posix = pytest.mark.skipif(os.name == "nt", reason="a compiler is named by CC on POSIX only")


@needs_posix
def test_c_files_are_compiled_side_by_side_and_progress_is_shown(tmp_path: Path) -> None:
    done = build_small(tmp_path, refuses="nothing of this name")
    assert done.returncode == 0, done.stderr
    assert libraries_in(tmp_path / "out") == {"rookery__mypyc", "rookery/first", "rookery/second"}
    running = most = 0
    for note in (tmp_path / "notes").read_text().split():
        running += 1 if note == "begin" else -1
        most = max(most, running)
    assert most == 2
    shown = [line for line in done.stdout.splitlines() if line.startswith("rookery: ")]
    assert shown[0] == "rookery: translating 2 modules to C"
    assert shown[1].endswith("2 at a time")
    assert any(line.startswith("rookery: compiled 100 %") for line in shown)


@needs_posix
@pytest.mark.parametrize(
    "refuses",
    ["*rookery___second.c*", "*rookery/first.c*", "*-shared*rookery/second.*"],
    ids=["a module", "a shim", "a link, after others"],
)
def test_one_c_file_that_fails_drops_all_compiled_modules(refuses: str, tmp_path: Path) -> None:
    done = build_small(tmp_path, refuses)
    assert done.returncode == 0, done.stderr
    assert libraries_in(tmp_path / "out") == set()
    assert "installed WITHOUT its compiled modules: the C compiler failed" in done.stderr


@needs_posix
def test_one_c_file_that_fails_is_an_error_where_compilation_is_required(tmp_path: Path) -> None:
    done = build_small(tmp_path, "*rookery___second.c*", ROOKERY_REQUIRE_COMPILED="1")
    assert done.returncode != 0
    assert "ROOKERY_REQUIRE_COMPILED=1, but the C compiler failed" in done.stderr
    assert not list(tmp_path.glob("out/*.whl"))


@needs_posix
def test_an_interrupted_build_leaves_no_library_for_the_next(tmp_path: Path) -> None:
    """setuptools takes a library that is newer than its sources for whole."""
    assert build_small(tmp_path, "nothing of this name").returncode == 0
    (half,) = (tmp_path / "build").glob("lib*/rookery__mypyc*")
    half.write_text("half")
    os.utime(half, (4e9, 4e9))
    shutil.rmtree(tmp_path / "src")
    assert build_small(tmp_path, "nothing of this name").returncode == 0
    assert half.read_text() == ""


def test_the_broker_alone_installs_nothing_large() -> None:
    """Spark, Arrow and clients of other engines come with extras."""
    large = {"pyspark", "pyarrow", "pandas", "numpy", "deltalake", "grpcio", "redis", "asyncpg", "plotly"}
    named = {re.split(r"[^A-Za-z0-9_-]", dependency)[0].lower() for dependency in PYPROJECT["project"]["dependencies"]}
    assert not named & large
    assert len(named) < 12
