# %% [markdown]
# # Scale channels in Lightning
#
# The loop of `plain_loop.py` as a Lightning module. It needs `pip install lightning`, which brings
# torchmetrics; the metric is then a `torchmetrics.Metric` and is summed over all devices.

# %%
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader

import equiscale

dataset = equiscale.load_dataset("emoji")
train_set = DataLoader(dataset.select("train", range(33, 49, 3)), batch_size=32, shuffle=True)
valid_set = DataLoader(dataset.select("valid", range(20, 65, 8)), batch_size=128)
network = equiscale.load_model("standard/emoji/mid2rest")  # or any classifier


# %%
class Robust(lightning.LightningModule):
    def training_step(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor]) -> None:
        self.metric.update(self.model(batch[0]), *batch[1:3])

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.metric.compute(), prog_bar=True)
        self.metric.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-4)


# %%
robust = Robust()
robust.model = equiscale.scale_channels(network)
robust.metric = equiscale.metrics.AccuracyByBucket(edges=(33, 49))
best = ModelCheckpoint(".", monitor="accuracy_33_to_49", mode="max")
trainer = lightning.Trainer(max_epochs=2, callbacks=[best], logger=False)
trainer.fit(robust, train_set, valid_set)
robust.load_state_dict(torch.load(best.best_model_path)["state_dict"])
print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
