"""A changed default is a new run: the version of a model is part of a run's key.

`python tests/models/test_versions.py` writes `versions.json` again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equiscale.core.protocol import TrainingProtocol
from equiscale.models import list_models, model_card
from equiscale.models.registry import MODEL_GROUPS

TABLE = Path(__file__).with_name("versions.json")
OURS = [name for group in MODEL_GROUPS if group != "own" for name in list_models(group)]


def describe(name: str) -> dict[str, Any]:
    card = model_card(name)
    defaults = {**card.fixed, **card.options}
    content = {"version": card.version, "defaults": dict(sorted(defaults.items()))}
    described: dict[str, Any] = json.loads(json.dumps(content))
    return described


@pytest.mark.parametrize("name", OURS)
def test_a_model_with_other_defaults_has_another_version(name: str) -> None:
    found, known = describe(name), json.loads(TABLE.read_text()).get(name)
    assert known is not None, f"{name} is new: write {TABLE.name} again"
    if found["defaults"] != known["defaults"]:
        assert found["version"] > known["version"], (
            f"defaults of {name} changed from {known['defaults']} to {found['defaults']}, but its "
            f"version is still {known['version']}: finished runs of the old defaults would be "
            "reused. Raise the attribute `version` of its factory. If the network is the same, as "
            f"with a new option that is off, only write {TABLE.name} again"
        )
    assert found == known, f"write {TABLE.name} again: see the top of this file"


def test_a_changed_protocol_has_another_version() -> None:
    """`RunKey` holds only what differs from the protocol of its version."""
    known = json.loads(TABLE.read_text())["protocol"]
    assert json.loads(json.dumps(vars(TrainingProtocol()))) == known, (
        "a default of TrainingProtocol changed: give it a new PROTOCOL_VERSION, so that its runs "
        "are new ones"
    )


if __name__ == "__main__":
    content = {name: describe(name) for name in OURS} | {"protocol": vars(TrainingProtocol())}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
