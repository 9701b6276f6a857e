"""An outer module may import an inner one, never the reverse; this file holds the order and fails on a breach."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The delivery core, innermost first: a module may import only what stands before it.
BDN_CORE = [
    "digest", "errors", "manifest", "roster", "ports", "ledger",
    "policy", "standing", "holders", "messages", "assignments", "acquaintances", "part", "coordinator", "sources",
    "strict", "window", "throttle", "origin_reads", "uploads", "flights", "blame", "questions", "hedge", "fetch",
    "resolver", "delivery",
]  # fmt: skip
CORE_MUST_NOT_IMPORT = {"os", "socket", "time", "random", "threading", "aiohttp"}


def modules(package: str) -> list[Path]:
    return sorted(p for p in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every dotted name that the file imports, at module level or inside a function, with its line.

    `from a.b import c` yields `a.b.c`: whether c is a module or a name, `a.b` is a prefix of it.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def breaches(package: str, forbidden: tuple[str, ...], under: str = "") -> list[str]:
    found = []
    for path in modules(package):
        if under and not path.is_relative_to(ROOT / under):
            continue
        for line, name in imports(path):
            if any(name == f or name.startswith(f + ".") for f in forbidden):
                found.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    return found


def test_the_two_halves_meet_only_at_a_directory_of_files() -> None:
    assert not breaches("bdn", ("runtime", "torch"))
    assert not breaches("runtime", ("bdn",))


def test_the_product_never_imports_the_oracle_or_the_tests() -> None:
    assert not breaches("bdn", ("moshi", "tests", "pytest"))
    assert not breaches("runtime", ("moshi", "tests", "pytest"))


def test_the_delivery_core_is_ordered_and_free_of_io() -> None:
    found = []
    for rank, module in enumerate(BDN_CORE):
        path = ROOT / "bdn" / f"{module}.py"
        if not path.exists():
            continue
        allowed = {f"bdn.{name}" for name in BDN_CORE[:rank]}
        for line, name in imports(path):
            where = f"bdn/{module}.py:{line} imports {name}"
            if name.split(".")[0] in CORE_MUST_NOT_IMPORT:
                found.append(where)
            if name.startswith("bdn.") and ".".join(name.split(".")[:2]) not in allowed:
                found.append(where)
    assert not found


def test_the_simulator_uses_ports_and_never_adapters() -> None:
    adapters = ("bdn.http", "bdn.origins", "bdn.upstreams", "bdn.membership", "bdn.nvme", "bdn.csi", "bdn.agent")
    assert not breaches("bdn", adapters, under="bdn/sim")


def test_serving_never_imports_torch() -> None:
    assert not breaches("runtime", ("torch",), under="runtime/serve")


def test_no_torch_modules_stay_without_torch() -> None:
    for module in ("config", "text", "wordfeed", "delays", "admission", "port"):
        path = ROOT / "runtime" / f"{module}.py"
        if path.exists():
            assert not [n for _, n in imports(path) if n.split(".")[0] == "torch"], path


def test_only_the_graph_runner_names_cuda_graphs_and_only_weights_names_safetensors() -> None:
    for path in modules("runtime"):
        text = path.read_text(encoding="utf-8")
        if path != ROOT / "runtime" / "graphs.py":
            assert "CUDAGraph" not in text, path
        if path != ROOT / "runtime" / "weights.py" and not path.is_relative_to(ROOT / "runtime" / "train"):
            assert not [n for _, n in imports(path) if n.split(".")[0] == "safetensors"], path
