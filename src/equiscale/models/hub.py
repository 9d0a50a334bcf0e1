"""Models on the Hugging Face Hub: the file of `save_model`, a config and a model card.

Extra `hub`; the only user of `huggingface_hub`. `Classifier.save_pretrained`, `push_to_hub` and
`from_pretrained` call `HubModel`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from equiscale.core.errors import MissingExtraError, OptionError
from equiscale.core.files import atomic_write, remove_temporaries, write_json
from equiscale.models.checkpoint import load_model, read_checkpoint, save_model
from equiscale.models.registry import ModelSpec, model_card
from equiscale.models.shipped import WeightsCard

try:
    from huggingface_hub import EvalResult, ModelCardData, ModelHubMixin, hf_hub_download
    from huggingface_hub import ModelCard as HubCard
except ImportError:
    raise MissingExtraError("huggingface_hub", "hub") from None

MODEL_FILE, CONFIG_FILE, CARD_FILE = "model.safetensors", "config.json", "README.md"
_DOWNLOAD = (
    *("revision", "cache_dir", "force_download", "local_files_only", "token"),
    *("proxies", "resume_download"),  # before huggingface_hub 1.0
)
_TASK = "image-classification"
_LICENSES = ("mit", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0")


class _Card(HubCard):  # type: ignore[misc]
    def save(self, filepath: Path | str) -> None:
        """Write the card, complete or not at all: an existing one is kept."""
        with atomic_write(Path(filepath)) as file:
            file.write(str(self).encode())


class HubModel(ModelHubMixin):  # type: ignore[misc]
    """A model as `huggingface_hub` saves, loads and uploads it.

    `save_pretrained`, `push_to_hub` and `from_pretrained` are those of `ModelHubMixin`.
    `from_pretrained` passes `num_classes` and `allow_import` to `load_model`.

    Args:
        model: A model built by `create_model`.
        card: How its weights were trained, for the model card: `weights_card(name)` of shipped
            weights, `equiscale.sweeps.weights.run_card(record)` of a run.
    """

    def __init__(self, model: nn.Module, card: WeightsCard | None = None) -> None:
        spec: Any = getattr(model, "spec", None)  # save_model refuses a model without one
        if card is not None and spec is not None:
            _check_card(card, spec)
        self.model = model
        self.card = card

    def _save_pretrained(self, save_directory: Path) -> None:
        for name in (MODEL_FILE, CONFIG_FILE, CARD_FILE):
            remove_temporaries(save_directory / name)
        file = save_model(self.model, save_directory / MODEL_FILE)
        checkpoint = read_checkpoint(file)
        config = {"library_name": "equiscale", **vars(checkpoint.spec)}
        config |= {"class_names": checkpoint.class_names}
        write_json(save_directory / CONFIG_FILE, config)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> HubModel:  # noqa: ANN401 - those of the mixin and of load_model
        download = {name: options.pop(name) for name in _DOWNLOAD if name in options}
        file = Path(model_id) / MODEL_FILE
        if not Path(model_id).is_dir():
            file = Path(hf_hub_download(model_id, MODEL_FILE, **download))
        return cls(load_model(file, **options))

    def push_to_hub(self, repo_id: str, **options: Any) -> Any:  # noqa: ANN401 - those of the mixin
        """Upload the model; its card says how to load it from `repo_id`."""
        texts = {"repo_id": repo_id, **(options.pop("model_card_kwargs", None) or {})}
        return super().push_to_hub(repo_id, model_card_kwargs=texts, **options)

    def generate_model_card(self, *, repo_id: str = "user/name", **_: object) -> HubCard:
        """Return the text of `README.md`."""
        spec: Any = self.model.spec
        described, data = model_card(spec.name), {}
        task = _TASK if spec.num_classes else "image-feature-extraction"
        output = f"{spec.num_classes} logits" if spec.num_classes else "pooled features"
        parts = [
            f"# {spec.name}\n\n{described.title}. {described.citation}".rstrip(),
            described.guarantee and f"**Guarantee.** {described.guarantee}",
            described.limits and f"**Limits.** {described.limits}",
            "## Use\n\n```python\n# pip install 'equiscale[hub]'\nfrom equiscale.models import "
            f'Classifier\n\nmodel = Classifier.from_pretrained("{repo_id}")\n```\n\nInput: '
            f"`[N, {spec.in_channels}, H, W]`, values 0 to 1. Output: {output}.",
        ]
        if self.card is not None:
            parts.append(_describe_training(self.card))
            data = _describe_data(self.card)
        metadata = ModelCardData(
            library_name="equiscale",
            pipeline_tag=task,
            tags=["scale-equivariance", "pytorch"],
            model_name=spec.name,
            **data,
        )
        text = "\n\n".join(part for part in parts if part)
        return _Card(f"---\n{metadata.to_yaml()}\n---\n\n{text}\n")


def _check_card(card: WeightsCard, spec: ModelSpec) -> None:
    """Raise `OptionError` if the card's accuracy cannot be that of the model."""
    if card.name.partition("/")[0] != spec.name:
        raise OptionError(f"the card is of {card.name!r}, but the model is {spec.name!r}")
    trained = read_checkpoint(card.path).spec if card.path.exists() else spec
    if trained.num_classes != spec.num_classes:
        raise OptionError(
            f"the card is of {trained.num_classes} classes, but the model has {spec.num_classes}"
        )


def _describe_data(card: WeightsCard) -> dict[str, Any]:
    """Return the metadata that the Hub shows and searches."""
    _, dataset, scenario = card.name.rsplit("/", 2)
    terms = card.license.partition(";")[0].lower().replace(" ", "-")
    result = EvalResult(
        task_type=_TASK,
        dataset_type=dataset,
        dataset_name=dataset,
        dataset_config=scenario,
        metric_type="accuracy",
        metric_value=card.test_accuracy,
    )
    return {"eval_results": [result], "license": terms if terms in _LICENSES else "other"}


def _describe_training(card: WeightsCard) -> str:
    _, dataset, scenario = card.name.rsplit("/", 2)
    facts = {
        "dataset": f"`{dataset}`, content hash `{card.dataset_hash}`",
        "licence of the images": card.license,
        "scenario": f"`{scenario}`",
        "protocol": f"`{card.protocol}`, learning rate {card.learning_rate:g}, seed {card.seed}",
        "run": f"`{card.run_id}`, equiscale {card.equiscale}, commit {card.commit or 'unknown'}",
        "validation accuracy": f"{card.valid_accuracy:.2%}, at the training sizes",
        "test accuracy": f"{card.test_accuracy:.2%}, at the sizes that the scenario tests",
    }
    sizes = {str(size): f"{value:.2%}" for size, value in card.accuracy_per_size.items()}
    tables = _table(("", ""), facts), _table(("object size", "accuracy"), sizes)
    return "## Training\n\n{}\n\n## Accuracy\n\n{}".format(*tables)


def _table(heading: tuple[str, str], rows: dict[str, str]) -> str:
    cells = [heading, ("---", "---"), *rows.items()]
    return "\n".join(f"| {key} | {value} |" for key, value in cells)
