"""The card of the weights that a run trained."""

from __future__ import annotations

from equiscale.data.catalog import CARDS
from equiscale.models.shipped import WeightsCard
from equiscale.runs.record import RunRecord


def run_card(record: RunRecord) -> WeightsCard:
    """Return the card of a run's weights, for `Classifier.push_to_hub`.

    The licence of the images is known for registered datasets only.
    """
    key = record.key
    return WeightsCard(
        name=f"{key.model}/{key.dataset}/{key.scenario.value}",
        run_id=key.run_id,
        seed=key.seed,
        learning_rate=key.learning_rate,
        dataset_hash=key.dataset_hash,
        license=CARDS[key.dataset].license if key.dataset in CARDS else "not stated",
        protocol=key.protocol.label,
        equiscale=record.environment["equiscale"],
        commit=record.environment["commit"],
        valid_accuracy=record.valid_accuracy,
        test_accuracy=record.test_accuracy,
        accuracy_per_size=record.predictions.accuracy_per_size(),
    )
