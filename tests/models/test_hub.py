"""Models in a directory as Hugging Face has them, and on a Hub that runs here."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import run_python

from equiscale import create_model, load_model
from equiscale.core.errors import InputFileError, OptionError
from equiscale.models import Classifier, read_checkpoint, weights_card

NAME = "standard/emoji/mid2rest"


def shipped() -> Classifier:
    model = load_model(NAME)
    assert isinstance(model, Classifier)
    return model


@pytest.mark.needs("huggingface_hub")
def test_a_directory_holds_the_model_file_a_config_and_a_card(tmp_path: Path) -> None:
    model, card = shipped(), weights_card(NAME)
    model.save_pretrained(tmp_path, card=card)
    assert read_checkpoint(tmp_path / "model.safetensors").spec == model.spec
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["name"], config["num_classes"]) == ("standard", 36)
    text = (tmp_path / "README.md").read_text()
    for size, accuracy in card.accuracy_per_size.items():
        assert f"| {size} | {accuracy:.2%} |" in text
    for fact in (card.run_id, card.protocol, card.dataset_hash, card.license, "license: cc-by-4.0"):
        assert fact in text

    images = torch.rand(2, 1, 64, 64)
    found = Classifier.from_pretrained(tmp_path)
    assert torch.equal(found(images), model(images))
    assert found.class_names == model.class_names
    assert not found.training
    assert Classifier.from_pretrained(tmp_path, num_classes=5)(images).shape == (2, 5)

    model.reset_classifier(0)
    model.save_pretrained(tmp_path / "headless")
    text = (tmp_path / "headless" / "README.md").read_text()
    assert "Output: pooled features." in text
    assert "pipeline_tag: image-feature-extraction" in text


@pytest.mark.needs("huggingface_hub")
def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    model = create_model("xu", in_channels=1, num_classes=2)
    assert isinstance(model, Classifier)
    model.save_pretrained(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(OptionError, match=r"card is of 'standard/emoji/mid2rest', but .* 'xu'"):
        model.save_pretrained(tmp_path, card=weights_card(NAME))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    other = shipped()
    other.reset_classifier(5)
    with pytest.raises(OptionError, match="card is of 36 classes, but the model has 5"):
        other.save_pretrained(tmp_path, card=weights_card(NAME))
    with pytest.raises(OptionError, match="not a StandardNet"):
        type(shipped()).from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputFileError, match="expected a file written by save_model"):
        Classifier.from_pretrained(tmp_path)


class Hub(BaseHTTPRequestHandler):
    """The part of the Hub's API that uploads and downloads a repository's files."""

    files: dict[str, bytes]  # by the path in a URL
    large: dict[str, bytes]  # by SHA-256

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            repository = json.loads(body)
            self._reply({"url": f"{self._url}/{repository['organization']}/{repository['name']}"})
        elif self.path == "/api/validate-yaml":
            self._reply({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = {p: "lfs" if p.endswith(".safetensors") else "regular" for p in paths}
            answer = [{"path": p, "uploadMode": modes[p], "shouldIgnore": False} for p in paths]
            self._reply({"files": answer})
        elif self.path.endswith(".git/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            for item in objects:
                item["actions"] = {"upload": {"href": f"{self._url}/large/{item['oid']}"}}
            self._reply({"transfer": "basic", "objects": objects})
        else:
            self._commit(body)

    def _commit(self, body: bytes) -> None:
        repository = self.path.removeprefix("/api/models/").removesuffix("/commit/main")
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            name = f"/{repository}/resolve/main/{value.get('path')}"
            if line["key"] == "file":
                self.files[name] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.files[name] = self.large[value["oid"]]
        self._reply({"commitUrl": f"{self._url}/{repository}/commit/1", "commitOid": "1" * 40})

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.large[hashlib.sha256(body).hexdigest()] = body
        self._reply({})

    def do_HEAD(self) -> None:
        self._send_file(with_body=False)

    def do_GET(self) -> None:
        self._send_file(with_body=True)

    def _send_file(self, with_body: bool) -> None:
        content = self.files.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("X-Repo-Commit", "1" * 40)
        self.send_header("ETag", f'"{hashlib.sha256(content or b"").hexdigest()}"')
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if with_body and content is not None:
            self.wfile.write(content)

    @property
    def _url(self) -> str:
        return f"http://{self.headers['Host']}"

    def _reply(self, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Stay silent."""


@pytest.fixture
def hub() -> Iterator[str]:
    handler = type("Handler", (Hub,), {"files": {}, "large": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


ROUND_TRIP = f"""
import torch
from equiscale import load_model
from equiscale.models import Classifier, weights_card
model = load_model({NAME!r})
url = model.push_to_hub("me/net", card=weights_card({NAME!r}), token="hf_any")
found = Classifier.from_pretrained("me/net")
images = torch.rand(2, 1, 64, 64)
assert torch.equal(found(images), model(images))
from huggingface_hub import ModelCard
card = ModelCard.load("me/net")
assert 'from_pretrained("me/net")' in card.text
assert card.data.eval_results[0].metric_value == weights_card({NAME!r}).test_accuracy
print(url)
"""


@pytest.mark.slow
@pytest.mark.needs("huggingface_hub")
def test_round_trip_through_a_hub(hub: str, tmp_path: Path) -> None:
    printed = run_python(
        *("-c", ROUND_TRIP),
        HF_ENDPOINT=hub,
        HF_HOME=str(tmp_path),
        HF_HUB_DISABLE_XET="1",
        HF_HUB_DISABLE_TELEMETRY="1",
    )
    assert printed.strip() == f"{hub}/me/net/commit/1"
