"""C files are compiled once, or not at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from equiscale.core.compiled import load_compiled

SOURCE = "#ifndef N\n#define N 1\n#endif\nint answer(void) { return 41 + N; }\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    monkeypatch.delenv("CC", raising=False)
    load_compiled.cache_clear()
    yield tmp_path / "cache" / "equiscale" / "native"
    load_compiled.cache_clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.c"
    path.write_text(SOURCE)
    return path


@pytest.mark.needs("cc")
def test_a_library_is_compiled_once(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = load_compiled(source)
    assert library is not None
    assert library.answer() == 42
    load_compiled.cache_clear()
    monkeypatch.setattr("subprocess.run", None)
    again = load_compiled(source)
    assert again is not None
    assert again.answer() == 42
    assert len(list(cache.iterdir())) == 1


@pytest.mark.needs("cc")
def test_macros_and_changed_sources_make_other_libraries(source: Path, cache: Path) -> None:
    plain, defined = load_compiled(source), load_compiled(source, "N=2")
    assert plain is not None
    assert defined is not None
    assert (plain.answer(), defined.answer()) == (42, 43)
    source.write_text(SOURCE.replace("41", "1"))
    load_compiled.cache_clear()
    changed = load_compiled(source)
    assert changed is not None
    assert changed.answer() == 2
    assert len(list(cache.iterdir())) == 3


@pytest.mark.needs("cc")
@pytest.mark.parametrize("kept", [0, 64, 4096, 12000])
def test_a_damaged_library_is_made_anew(kept: int, source: Path, cache: Path) -> None:
    assert load_compiled(source) is not None
    (library,) = cache.iterdir()
    whole = library.read_bytes()
    library.unlink()
    library.write_bytes(whole[:kept])
    load_compiled.cache_clear()
    again = load_compiled(source)
    assert again is not None
    assert again.answer() == 42
    assert library.read_bytes() == whole


@pytest.mark.needs("cc")
def test_another_compiler_makes_another_library(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_compiled(source) is not None
    load_compiled.cache_clear()
    monkeypatch.setenv("CC", "'cc' -DN=5")
    other = load_compiled(source)
    assert other is not None
    assert other.answer() == 46
    assert len(list(cache.iterdir())) == 2


def test_without_a_home_there_is_none(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(name: str) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr("platformdirs.user_cache_dir", no_home)
    assert load_compiled(source) is None


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_that_works_there_is_none(
    compiler: str, source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert load_compiled(source) is None
    assert not cache.exists()


def test_without_any_compiler_there_is_none(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load_compiled(source) is None


@pytest.mark.needs("cc")
def test_an_error_in_the_source_is_said_in_the_log(
    source: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source.write_text("this is not C")
    with caplog.at_level("INFO"):
        assert load_compiled(source) is None
    assert "unknown type name" in caplog.text
    assert not cache.exists()


@pytest.mark.needs("cc")
def test_a_cache_that_cannot_be_written_is_no_error(source: Path, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where a directory should be")
    assert load_compiled(source) is None


@pytest.mark.needs("cc")
def test_processes_may_compile_at_the_same_time(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from equiscale.core.compiled import load_compiled;"
        "print(load_compiled(pathlib.Path(sys.argv[1])).answer())"
    )
    environment = {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(source)], stdout=subprocess.PIPE, env=environment
        )
        for _ in range(4)
    ]
    assert [process.communicate()[0].strip() for process in running] == [b"42"] * 4
