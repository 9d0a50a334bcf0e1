"""What an installation promises: a light import, extras that stand alone, a command that helps."""

from __future__ import annotations

import importlib
import json
import re

import pytest
from tests.processes import ROOT, run_python

import equiscale

SOURCE = ROOT / "src"

MODULES = {
    "build": {"PIL", "cairosvg", "skimage", "yaml", "scipy"},
    "report": {"PIL", "matplotlib", "polars", "scipy", "yaml"},
    "hub": {"PIL", "huggingface_hub", "pyarrow", "yaml"},
    "ray": {"ray", "yaml"},
    "slurm": {"submitit"},
    "track": {"PIL", "mlflow", "tensorboard", "yaml"},
}
"""Top-level modules that come with each extra, those of its dependencies too."""

HIDING = """
import importlib.abc, sys
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"hidden: {{name}}", name=name)
sys.meta_path.insert(0, Hide())
"""
ROOMS = {
    "build": "import equiscale.build.emoji, equiscale.build.folder as f, equiscale.build.mnist\n"
    "from equiscale.build.extras import import_cairosvg, import_extra\n"
    "import_extra('PIL.Image', 'pillow'), import_extra('skimage', 'scikit-image')",
    "report": "import equiscale.analysis.standings, equiscale.report.figures\n"
    "import equiscale.report.page",
    "hub": "import equiscale.models.hub\nfrom equiscale.build.extras import import_extra\n"
    "import_extra('pyarrow.parquet', 'pyarrow', 'hub')",
    "ray": "from equiscale.sweeps.launch import LAUNCHERS\nLAUNCHERS['ray']",
    "slurm": "from equiscale.sweeps.launch import LAUNCHERS\nLAUNCHERS['slurm']",
    "track": "from equiscale.sweeps.tracking import check_trackers\n"
    "check_trackers(('tensorboard', 'mlflow'))",
}


def hide_all_but(*extras: str) -> str:
    kept = set().union(*(MODULES[extra] for extra in extras))
    return HIDING.format(hidden=sorted(set().union(*MODULES.values()) - kept))


@pytest.mark.parametrize(
    "extra",
    [
        "build",
        "report",
        pytest.param("hub", marks=pytest.mark.needs("huggingface_hub")),
        pytest.param("ray", marks=pytest.mark.needs("ray")),
        pytest.param("slurm", marks=pytest.mark.needs("submitit")),
        pytest.param("track", marks=pytest.mark.needs("mlflow")),
    ],
)
def test_an_extra_stands_alone(extra: str) -> None:
    run_python("-c", hide_all_but(extra) + ROOMS[extra])


@pytest.mark.parametrize("extra", MODULES)
def test_a_missing_extra_says_how_to_get_it(extra: str) -> None:
    code = hide_all_but() + (
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: None\n"  # what the trackers ask
        "from equiscale.core.errors import MissingExtraError\ntry:\n"
        + "".join(f"    {line}\n" for line in ROOMS[extra].splitlines())
        + "except MissingExtraError as error:\n    print(error)\n"
    )
    assert f"pip install 'equiscale[{extra}]'" in run_python("-c", code)


def test_without_extras_everything_else_imports() -> None:
    code = hide_all_but() + (
        "import equiscale.cli, equiscale.sweeps.request, equiscale.metrics\n"
        "import equiscale.models, equiscale.build.folder, equiscale.runs.table, equiscale.probing\n"
    )
    run_python("-c", code)


def test_import_is_light() -> None:
    code = (
        "import sys\nimport equiscale\nequiscale.EquiscaleError\n"
        "heavy = {'torch', 'numpy', 'scipy', 'polars', 'matplotlib', 'rich', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    assert run_python("-c", code).strip() == "[]"


def test_help_does_not_load_torch() -> None:
    code = (
        "import sys\nsys.argv = ['equiscale', 'sweep', '--help']\n"
        "import equiscale.cli\n"
        "try:\n    equiscale.cli.main()\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules)\n"
    )
    assert run_python("-c", code).splitlines()[-1] == "False"


def test_the_module_is_the_command_and_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_python("-m", "equiscale", "--version").strip() == equiscale.__version__
    monkeypatch.setenv("_EQUISCALE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "equiscale sw")
    monkeypatch.setenv("COMP_CWORD", "1")
    code = "import sys; sys.argv = ['equiscale']; from equiscale.cli import main; main()"
    assert run_python("-c", code).split() == ["sweep"]


@pytest.mark.parametrize(
    "room", ["analysis", "data", "layers", "metrics", "models", "probing", "runs"]
)
def test_no_public_name_hides_a_module(room: str) -> None:
    """Of two things with one name, the reference and `import … as` would find the wrong one."""
    package = importlib.import_module(f"equiscale.{room}")
    modules = {path.stem for path in (SOURCE / "equiscale" / room).iterdir()}
    assert modules.isdisjoint(getattr(package, "__all__", ()))


def test_workflows_call_make_targets() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        commands = re.findall(r"run: (.+)", workflow.read_text(encoding="utf-8"))
        for command in commands:
            program, *words = command.partition("#")[0].split()
            if program != "git":  # the checkout's owner
                assert program == "make", f"{workflow.name}: {command}"
                assert {word for word in words if "=" not in word} <= targets, command


def test_a_release_names_the_repository_that_built_it() -> None:
    found = run_python("-m", "hatchling", "metadata", "urls", GITHUB_REPOSITORY="someone/fork")
    urls = json.loads(found)
    assert urls["Repository"] == "https://github.com/someone/fork"
    assert urls["Paper"].startswith("https://arxiv.org/")
