# %% [markdown]
# # Scale channels in a plain PyTorch loop
#
# Wrap a network that knows objects of 33 to 48 pixels, continue its training with a progress bar
# and a checkpoint after each epoch, and measure the accuracy on smaller and larger objects.

# %%
import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

import equiscale

dataset = equiscale.load_dataset("emoji")
train_set = DataLoader(dataset.select("train", range(33, 49, 3)), batch_size=32, shuffle=True)
valid_set = DataLoader(dataset.select("valid", range(20, 65, 8)), batch_size=128)
network = equiscale.load_model("standard/emoji/mid2rest")  # or any classifier
model = equiscale.scale_channels(network).train()
metric = equiscale.metrics.AccuracyByBucket(edges=(33, 49))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

# %% [markdown]
# Train. The metric takes predictions or logits, labels and object sizes, from any dataset.

# %%
for epoch in range(2):
    for images, labels, *_ in tqdm(train_set, desc=f"epoch {epoch}"):
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save(model.state_dict(), "last.pt")
with torch.no_grad():
    for images, labels, object_sizes, _ in valid_set:
        metric.update(model.eval()(images), labels, object_sizes)
print(metric.compute())
