"""Starts real worker processes quickly: loads everything once, then forks one per line of input.

For each line (what a worker reads, see `worker.encode_work`) it prints the process number of the
child at once, and the child's exit status when it has ended.
"""

from __future__ import annotations

import os
import sys

import torch._dynamo  # noqa: F401 - the first optimiser of a process would load it, slowly

from equiscale.sweeps import job, worker


def main() -> None:
    for line in sys.stdin.buffer:
        _, settings = worker._decode_work(line)
        for source in settings.sources.values():
            job._load_dataset(source)  # kept for the children
        if (child := os.fork()) == 0:
            keys, settings = worker._decode_work(line)
            try:
                worker.work(keys, settings)
            except BaseException as error:
                sys.stderr.write(f"{error!r}\n")
                os._exit(1)
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
