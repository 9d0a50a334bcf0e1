"""Whether a model is still the one that a record was made with."""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from equiscale.core.files import content_hash
from equiscale.models.foreign import FINGERPRINT_LENGTH, plain_text
from equiscale.models.registry import model_card

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = [
    Path(path).resolve()
    for name, path in sysconfig.get_paths().items()
    if name in ("stdlib", "platstdlib", "purelib", "platlib")
]


@lru_cache(maxsize=256)
def model_fingerprint(name: str) -> str:
    """Return a hash of a model's default options and, of a user's own, of its source files.

    The files are that of the factory and those it imports, as far as they are not installed: a
    record that was made with another fingerprint may be one of an older version of the model.

    Examples:
        >>> model_fingerprint("standard") == model_fingerprint("standard")
        True
    """
    card = model_card(name)
    defaults = {option: plain_text(value) for option, value in card.options.items()}
    sources = _own_sources(str(getattr(card.factory, "__module__", "")))
    return content_hash({"defaults": defaults, "sources": sources})[:FINGERPRINT_LENGTH]


def _own_sources(module_name: str) -> dict[str, str]:
    """Return the text of a module and of the modules it refers to, without installed ones."""
    found: dict[str, str] = {}
    todo = [module_name]
    while todo:
        name = todo.pop()
        module = sys.modules.get(name)
        path = Path(getattr(module, "__file__", None) or "")
        if module is None or name in found or not _is_own(path):
            continue
        found[name] = path.read_text(encoding="utf-8", errors="replace")
        todo += _referred_modules(module)
    return found


def _is_own(path: Path) -> bool:
    """Whether a file is a user's source file, neither ours nor installed."""
    if path.suffix != ".py" or not path.is_file():
        return False
    parents = path.resolve().parents
    return not any(directory in parents for directory in (_PACKAGE, *_INSTALLED))


def _referred_modules(module: ModuleType) -> list[str]:
    """Return the names of the modules that a module's globals are or come from."""
    values = list(vars(module).values())
    names = [
        value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        for value in values
    ]
    return [name for name in names if isinstance(name, str)]
