"""Loading is strict: whatever is wrong with a checkpoint is one line that names it, and never a wrong sound."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor

from runtime import checkpoint, weights
from runtime import model_config as configs
from runtime.errors import CheckpointInvalid, SpecInvalid
from runtime.make_checkpoint import raw_config
from runtime.model import layout


def test_the_published_shapes_add_up_to_the_published_file() -> None:
    """The 1.6B file is 3,683,719,712 bytes: 418 tensors, 3,683,672,576 bytes of data."""
    shapes = layout.expected(configs.parse(raw_config("1.6b")))
    sizes = {n: torch.Size(s).numel() * (4 if n.startswith(layout.CONDITIONS) else 2) for n, s in shapes.items()}
    assert (len(shapes), sum(sizes.values())) == (418, 3_683_672_576)


def test_published_names_are_the_expected_names() -> None:
    shapes = layout.expected(configs.parse(raw_config("1.6b")))
    for name, shape in {
        "text_emb.out2.weight": (2048, 2048),
        "depformer_text_emb.low_rank.weight": (1024, 128),
        "depformer.layers.3.self_attn.in_proj_weight": (11 * 3072, 1024),
        "transformer.layers.15.norm_cross.bias": (2048,),
        "condition_provider.conditioners.cfg.embed.weight": (8, 16),
    }.items():
        assert shapes[name] == shape


WRONG: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda c: c.update(layer_scale=0.1), "layer_scale"),
    (lambda c: c.update(gating="gelu"), "gating"),
    (lambda c: c.update(dim="wide"), "dim"),
    (lambda c: c.pop("n_q"), "n_q"),
    (lambda c: c.update(new_feature=1), "new_feature"),
    (lambda c: c["delays"].pop(), "delays"),
    (lambda c: c.update(dep_q=4), "dep_q"),
    (lambda c: c["fuser"]["sum"].append("mood"), "mood"),
    (lambda c: c["tts_config"].update(multistream=True), "multistream"),
    (lambda c: c.update(depformer_weights_per_step_schedule=[0] * 7 + [9]), "schedule"),
    (lambda c: c.update(num_heads=3), "dim"),
    (lambda c: c.update(cross_attention=False), "cross_attention"),
    (lambda c: c["conditioners"]["cfg"].update(type="wav"), "conditioners.cfg"),
    (lambda c: c["lm_gen_config"].update(temp="warm"), "lm_gen_config: temp"),
    (lambda c: c["lm_gen_config"].update(temp=-3), "config.json: lm_gen_config: temp: must lie between 0 and 4, is -3"),
    (lambda c: c["lm_gen_config"].update(text_temp=5), "config.json: lm_gen_config: text_temp"),
    (lambda c: c["lm_gen_config"].update(cfg=-1.0), "config.json: lm_gen_config: cfg"),
    (lambda c: c.update(moshi_name="../other/model.safetensors"), "moshi_name"),
    (lambda c: c["fuser"]["sum"].append("speaker_wavs"), "no single vector"),
]


@pytest.mark.parametrize(("spoil", "named"), WRONG, ids=[named for _, named in WRONG])
def test_a_wrong_config_is_refused_by_the_name_of_the_key(spoil: Callable[[dict[str, Any]], Any], named: str) -> None:
    raw = raw_config("small")
    spoil(raw)
    with pytest.raises(CheckpointInvalid, match=named) as caught:
        configs.parse(raw)
    assert "\n" not in str(caught.value)


def rewrite(source: Path, target: Path, change: Callable[[dict[str, Tensor]], Any]) -> Path:
    shutil.copytree(source, target)
    file = target / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in weights.read(file).items()}
    file.unlink()
    change(tensors)
    weights.write(file, tensors)
    return target


BROKEN: list[tuple[Callable[[dict[str, Tensor]], Any], str]] = [
    (lambda t: t.pop("emb.3.weight"), r"emb\.3\.weight: is missing"),
    (lambda t: t.update(spare=torch.zeros(2)), "spare: is not part of the model"),
    (lambda t: t.update({"out_norm.alpha": torch.ones(1, 1, 64)}), r"out_norm\.alpha: has shape \[1, 1, 64\]"),
    (lambda t: t["linears.2.weight"].view(-1)[77].fill_(float("nan")), r"linears\.2\.weight: holds values"),
    (lambda t: t["linears.2.weight"].view(-1)[77].fill_(float("-inf")), r"linears\.2\.weight: holds values"),
    (
        lambda t: t.update({"text_linear.weight": torch.ones(512, 128).to(torch.int32)}),
        r"text_linear\.weight: has type",
    ),
]


@pytest.mark.parametrize(("change", "line"), BROKEN, ids=["missing", "extra", "misshapen", "nan", "inf", "type"])
def test_a_wrong_tensor_is_named(
    small_checkpoint: Path, tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], line: str
) -> None:
    broken = rewrite(small_checkpoint, tmp_path / "broken", change)
    with pytest.raises(CheckpointInvalid, match=line):
        checkpoint.load(broken)


def test_a_truncated_file_is_named(small_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(small_checkpoint, tmp_path / "cut")
    file = tmp_path / "cut" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100_000])
    with pytest.raises(CheckpointInvalid, match=r"model\.safetensors: is not a readable safetensors file"):
        checkpoint.load(tmp_path / "cut")


def test_a_pointer_instead_of_the_tokenizer_is_named(small_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(small_checkpoint, tmp_path / "p")
    (tmp_path / "p" / "tokenizer.model").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointInvalid, match=r"tokenizer\.model: is not a readable SentencePiece model"):
        checkpoint.load(tmp_path / "p")


@pytest.mark.parametrize(("voice", "wrong", "there"), [("small", 1, "2, 3, 4, 5, 6, 7, 8"), ("demo", 6, "4, 8")])
def test_a_number_of_codebooks_that_does_not_work_names_those_that_do(
    small_checkpoint: Path, voice: str, wrong: int, there: str
) -> None:
    directory = small_checkpoint if voice == "small" else Path(__file__).parents[2] / "voices/demo"
    with pytest.raises(SpecInvalid, match=f"codebooks: this checkpoint speaks {there}, not {wrong}") as caught:
        checkpoint.load(directory, codebooks=wrong)
    assert caught.value.exit_code == 2


def test_a_lexicon_that_was_cut_off_is_named(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "voices/demo", tmp_path / "demo")
    file = tmp_path / "demo" / "lexicon.tsv.gz"
    file.write_bytes(file.read_bytes()[:50_000])
    with pytest.raises(CheckpointInvalid, match=r"lexicon\.tsv\.gz: is not a readable lexicon"):
        checkpoint.load(tmp_path / "demo")


def test_a_voice_of_another_length_is_named(small_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(small_checkpoint, tmp_path / "v")
    name = "voices/odd.deadbeef@1.safetensors"
    (tmp_path / "v" / "voices").mkdir()
    weights.write(tmp_path / "v" / name, {"speaker_wavs": torch.zeros(1, 32, 17)})
    found = checkpoint.load(tmp_path / "v").voices
    assert found.names == ("odd", "voice0.wav", "voice1.wav")
    with pytest.raises(CheckpointInvalid, match=r"must be \d+ long"):
        found.embedding(found.check(("odd+voice1",))[0])


def test_unknown_types_of_codec_are_listed(small_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(small_checkpoint, tmp_path / "c")
    raw = json.loads((tmp_path / "c" / "config.json").read_text())
    (tmp_path / "c" / "config.json").write_text(json.dumps({**raw, "codec": {"type": "wax cylinder"}}))
    with pytest.raises(CheckpointInvalid, match="mimi, spectral"):
        checkpoint.load(tmp_path / "c")


def test_a_file_of_weights_that_cannot_be_written_whole_leaves_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    weights.write(path, {"a": torch.ones(3)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))  # a full disk that needs no disk
    try:
        with pytest.raises((OSError, SafetensorError)):
            weights.write(path, {"a": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]
    assert torch.equal(weights.read(path)["a"], torch.ones(3))


def test_weights_are_used_where_they_lie(small_checkpoint: Path) -> None:
    """Matrices that need no other type or form are the mapped file's own pages."""
    tensors = weights.read(small_checkpoint / "model.safetensors")
    mapped = tensors["transformer.layers.0.self_attn.in_proj_weight"]
    config = configs.read(small_checkpoint)
    model = layout.assemble(config, tensors, dtype=torch.float32, device=torch.device("cpu"))
    held = model.temporal.layers[0].w_qkv
    assert isinstance(held, torch.Tensor) and held.data_ptr() == mapped.data_ptr()


def test_a_file_that_is_not_in_memory_is_read_ahead_and_gives_the_same_tensors(tmp_path: Path) -> None:
    path, tensor = tmp_path / "cold.safetensors", torch.arange(20_000_000, dtype=torch.float32)
    weights.write(path, {"a": tensor, "b": tensor[:7].clone()})
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        size = os.fstat(descriptor).st_size
        if weights._in_memory(descriptor, size):
            pytest.skip("this file system keeps its files in memory")
        before = len(os.listdir("/proc/self/fd"))
        with weights.ahead(path):
            pass  # Its threads are joined here: all of the file has been asked for.
        assert len(os.listdir("/proc/self/fd")) == before
        read = weights.read(path)
        assert torch.equal(read["a"], tensor) and torch.equal(read["b"], tensor[:7])
        os.pread(descriptor, size, 0)
        assert weights._in_memory(descriptor, size)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("what", ["missing", "directory", "empty"])
def test_what_is_no_file_of_tensors_is_named(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "directory":
        path.mkdir()
    elif what == "empty":
        path.touch()
    with pytest.raises(CheckpointInvalid, match=str(path)):
        weights.read(path)
