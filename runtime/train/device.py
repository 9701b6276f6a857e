"""Where a training script computes: the `--device` that all of them take, and random draws made there.

Data are read and kept in the host's memory; what a step works on is moved to the device whole.
"""

from __future__ import annotations

import argparse

import torch


def add_device(parser: argparse.ArgumentParser) -> None:
    """`--device`, an argument of the parsed namespace as a torch.device: a CUDA device where there is one, else cpu."""
    default = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--device", type=device_named, default=default, help="cpu, cuda or cuda:N (default: cuda where there is one)"
    )


def device_named(name: str) -> torch.device:
    """The device of that name. Raises ArgumentTypeError, which argparse prints as one line, where there is none."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{name!r} is no device; cpu, cuda or cuda:N") from None
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= there:
        has = f"{there} CUDA devices" if there else "no CUDA device"
        raise argparse.ArgumentTypeError(f"{name}: this machine has {has} that PyTorch can use; --device cpu works")
    if device.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{name!r} is not supported; cpu, cuda or cuda:N")
    return device


def draws(seed: int, device: torch.device) -> torch.Generator:
    """A seeded generator on the device. Draws repeat on one kind of device; another kind draws other numbers."""
    return torch.Generator(device).manual_seed(seed)
