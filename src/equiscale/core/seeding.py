"""Independent seeds from a run key and the name of a random stream."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(key: str, stream: str) -> int:
    """Return a 63-bit seed that depends on both texts and on nothing else.

    Different streams of the same key ("weights", "shuffle", …) are independent,
    so that drawing more from one never changes another.
    """
    digest = hashlib.sha256(f"{len(key)}:{key}:{stream}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def numpy_generator(key: str, stream: str) -> np.random.Generator:
    """Return a NumPy generator seeded by `derive_seed`."""
    return np.random.default_rng(derive_seed(key, stream))
