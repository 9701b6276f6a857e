"""Workload `products`: all matrices of the temporal transformer times a step's rows, in four number formats.

float32, bfloat16 and int8 are the forms that a step on a processor multiplies by; int4 (groups of 32 weights with a
scale and a zero, bfloat16 activations) is torch's own kernel, which the product does not use. Random weights in a
published shape, every layer's own, so that none stays in a cache that a step would find cold. The formats take turns in
one process; processor time of one thread. For each format also: MiB held, seconds to make it from bfloat16, how far its
products lie from exact ones (root mean square, over theirs), and whether a row has the same bits in any company, which
a lane counts on. The last line on stdout is one JSON object.

    python benchmarks/bench_products.py [--smoke] [--json] [--size 1.6b] [--rows 1 8 32] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch
from torch import Tensor

from benchmarks.bench_frame import commit, machine
from runtime import make_checkpoint
from runtime import model_config as configs
from runtime.model.matrices import Int8Matrix, Matrix, linear, steady
from runtime.model_config import ModelConfig

WARMUP = 1
GROUP = 32  # weights that share a scale: torch's kernel takes 32, 64, 128 or 256, and fewer are more exact


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """A matrix in 4 bits a weight, and 32 for the scale and the zero of a group: 5 in all."""

    values: Tensor  # opaque
    scale_and_zero: Tensor  # [in / GROUP, out, 2] bfloat16

    @staticmethod
    def of(weight: Tensor) -> Int4Matrix:
        groups = weight.float().view(weight.shape[0], -1, GROUP)
        low, high = groups.aminmax(dim=2, keepdim=True)
        scale = ((high - low) / 15).clamp_(min=1e-12)
        levels = ((groups - low) / scale).round_().clamp_(0, 15).to(torch.int32).view(weight.shape)
        pair = torch.cat((scale, low + 8 * scale), dim=2).to(torch.bfloat16)  # the kernel's levels are -8 to 7
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
        return Int4Matrix(packed, pair.transpose(0, 1).contiguous())

    def times(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.values, GROUP, self.scale_and_zero)
        return result


Form = Matrix | Int4Matrix
FORMATS: dict[str, Callable[[Tensor], Form]] = {
    "float32": lambda weight: steady(weight.float()), "bfloat16": steady, "int8": Int8Matrix.of, "int4": Int4Matrix.of,
}  # fmt: skip


def times(x: Tensor, form: Form) -> Tensor:
    return form.times(x) if isinstance(form, Int4Matrix) else linear(x, form)


def described(size: str) -> ModelConfig:
    return configs.parse(make_checkpoint.raw_config(size))


def shapes(size: str) -> list[tuple[int, int]]:
    """The products of one step of one layer, as it makes them: keys and values of the voice are made once a stream."""
    config = described(size)
    dim, hidden = config.temporal.dim, config.temporal.hidden
    cross = [(dim, dim), (dim, dim)] if config.cross_attention else []
    return [(3 * dim, dim), (dim, dim), (2 * hidden, dim), (dim, hidden), *cross]


def weights(size: str, layers: int) -> Iterator[Tensor]:
    """Every matrix, in bfloat16, one at a time: the same at each call."""
    draws = torch.Generator().manual_seed(0)
    for shape in shapes(size) * layers:
        yield (torch.randn(shape, generator=draws) * shape[1] ** -0.5).to(torch.bfloat16)


def held_bytes(form: Form) -> int:
    """Of a form's tensors; what a library adds to fill its blocks is not counted."""
    parts = [getattr(form, name) for name in form.__slots__]
    return sum(part.numel() * part.element_size() for part in parts if isinstance(part, torch.Tensor))


def made(size: str, layers: int, make: Callable[[Tensor], Form]) -> tuple[list[Form], dict[str, float]]:
    """All matrices in one format, the seconds of making them and the memory they take."""
    took, forms = 0.0, []
    for weight in weights(size, layers):
        began = time.process_time()
        forms.append(make(weight))
        took += time.process_time() - began
    return forms, {"made_s": round(took, 1), "mib": round(sum(map(held_bytes, forms)) / 2**20)}


def inputs(size: str, rows: int) -> dict[int, Tensor]:
    """Activations [rows, in] by their width."""
    draws = torch.Generator().manual_seed(1)
    widths = sorted({shape[1] for shape in shapes(size)})
    return {width: torch.randn(rows, width, generator=draws).to(torch.bfloat16) for width in widths}


def exactness(size: str, forms: Sequence[Form], dtype: torch.dtype) -> dict[str, object]:
    """Of a layer's products: root mean square distance from exact ones of the same numbers, over the exact ones';
    whether their first row is the same alone."""
    apart = whole = 0.0
    alike = True
    for weight, form in zip(weights(size, 1), forms, strict=False):
        x = inputs(size, 32)[weight.shape[1]]
        exact, got = x.double() @ weight.double().t(), times(x.to(dtype), form)
        apart += float((got.double() - exact).square().sum())
        whole += float(exact.square().sum())
        alike &= all(torch.equal(times(x[:rows].to(dtype), form), got[:rows]) for rows in (1, 2, 3, 5, 8, 17))
    return {"error": float(f"{(apart / whole) ** 0.5:.2g}"), "row_alike": alike}


def by_turns(size: str, layers: int, forms: dict[str, list[Form]], rows: int, rounds: int) -> dict[str, float]:
    """Milliseconds of all products of a step, the median of each format."""
    xs = inputs(size, rows)
    order = [shape[1] for shape in shapes(size)] * layers
    took: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(WARMUP + rounds):
        for name, held in forms.items():
            given = {width: x.to(_activations(name)) for width, x in xs.items()}
            began = time.process_time()
            for width, form in zip(order, held, strict=True):
                times(given[width], form)
            took[name].append((time.process_time() - began) * 1e3)
    return {name: round(statistics.median(values[WARMUP:]), 2) for name, values in took.items()}


def _activations(name: str) -> torch.dtype:
    return torch.float32 if name == "float32" else torch.bfloat16


@torch.inference_mode()
def measure(size: str, layers: int, rows: Sequence[int], rounds: int) -> dict[str, object]:
    forms: dict[str, list[Form]] = {}
    held: dict[str, dict[str, object]] = {}
    for name, make in FORMATS.items():
        forms[name], took = made(size, layers, make)
        held[name] = {**took, **exactness(size, forms[name], _activations(name))}
    steps = [{"rows": n, **by_turns(size, layers, forms, n, rounds)} for n in rows]
    return {
        "workload": "products", "size": size, "layers": layers, "weights": sum(a * b for a, b in shapes(size)) * layers,
        "int4_group": GROUP, "clock": "processor time, one thread", "rounds": rounds, "formats": held, "step_ms": steps,
        "seed": 0, "commit": commit(), **machine(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="the small shape, one round")
    parser.add_argument("--json", action="store_true", help="the JSON object only (there is nothing else)")
    parser.add_argument("--size", default="1.6b", choices=make_checkpoint.SIZES)
    parser.add_argument("--layers", type=int, default=0, help="0: as many as the model has")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    size, rounds = ("small", 1) if args.smoke else (args.size, args.rounds)
    layers = args.layers or described(size).temporal.layers
    print(json.dumps(measure(size, layers, args.rows, rounds)))


if __name__ == "__main__":
    main()
