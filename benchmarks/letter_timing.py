"""Time to encode an increment, by what is in it: `python -m benchmarks.letter_timing`.

A letter has the same size whatever its numbers are. The time to make it may depend on them, so
somebody who sees when letters leave a node may learn about them. CPU time of one thread, the
fastest of 50.
"""

from __future__ import annotations

import time

import torch

from coterie.app.wire.operators import OPERATORS

SHAPES = [(512, 500), (500,), (10, 50)]  # 257,000 numbers
REPEATS = 50


def differences() -> dict[str, torch.Tensor]:
    """Return differences to a public copy, by name."""
    d = sum(torch.Size(shape).numel() for shape in SHAPES)
    normal = torch.randn(d, generator=torch.Generator().manual_seed(0))
    one = torch.zeros(d)
    one[0] = 1.0
    return {"zero": torch.zeros(d), "one number": one, "equal": torch.ones(d), "normal": normal}


def main() -> None:
    """Print milliseconds by operator and difference."""
    torch.set_num_threads(1)
    named = differences()
    print("operator".ljust(12), *(name.rjust(12) for name in named))
    for operator in OPERATORS:
        q = OPERATORS[operator](SHAPES, 0.05)
        row = []
        for x_d in named.values():
            seconds = []
            for _ in range(REPEATS):
                begun = time.process_time()
                q.encode(x_d, q.memory(torch.float32))
                seconds.append(time.process_time() - begun)
            row.append(f"{1e3 * min(seconds):.2f} ms".rjust(12))
        print(operator.ljust(12), *row)


if __name__ == "__main__":
    main()
