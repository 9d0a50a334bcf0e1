"""How raw sources become dataset files. Extra `build`; the only user of image libraries.

Arguments that builders share:

- `num_instances`: Images per class, split and object size; None means the number on the card.
- `skip_bad`: Leave out damaged pictures, and name them, instead of stopping.
- `layout`: Canvas and object sizes.
- `workers`: Number of processes. The result does not depend on it.
- `progress`: Called as `progress(done, total)`.
"""
