"""Checkpoints with random weights in the published layout: for tests, demonstrations and timing where none can be had.

They load, stream and cost what a trained one does; what they say is noise. Same size and seed, same bytes. Weights are
scaled so that activations stay near one, and the text head so that it asks for words at a human pace.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runtime import model_config as configs
from runtime import weights
from runtime.cli import Call
from runtime.errors import NameUnknown, Usage
from runtime.model import layout
from runtime.model.layout import CONDITIONS
from runtime.model.mimi_config import expected_shapes, parse_mimi_config
from runtime.model_config import ModelConfig
from runtime.wordfeed import NEW_WORD, PAD

EXAMPLES = """
tts make-checkpoint model --size small --seed 1
tts make-checkpoint model-1.6b --size 1.6b --dtype bfloat16
"""
GROUPS: tuple[type, ...] = ()

Shape = tuple[int, ...]

FULL_VOICE_POSITIONS, SMALL_VOICE_POSITIONS = 125, 16
ASKING_GAIN = 6.0  # the two text answers that matter win most of the time
TOKENIZER_PIECES_MAX = 4000  # what the standard library's texts are enough for

_1_6B: dict[str, Any] = {
    "card": 2048, "n_q": 32, "dep_q": 32, "delays": [0, 0] + [2] * 31,
    "dim": 2048, "text_card": 8000, "existing_text_padding_id": 3,
    "num_heads": 16, "num_layers": 16, "hidden_scale": 4.125, "causal": True,
    "layer_scale": None, "context": 500, "max_period": 10000, "gating": "silu",
    "norm": "rms_norm_f32", "positional_embedding": "rope",
    "depformer_dim": 1024, "depformer_num_heads": 16, "depformer_num_layers": 4,
    "depformer_dim_feedforward": 3072, "depformer_multi_linear": True,
    "depformer_pos_emb": "none", "depformer_weights_per_step": True,
    "depformer_low_rank_embeddings": 128, "demux_second_stream": True, "text_card_out": None,
    "conditioners": {
        "speaker_wavs": {"type": "tensor", "tensor": {"dim": 512}},
        "cfg": {"type": "lut", "lut": {"n_bins": 7, "dim": 16, "tokenizer": "noop",
                "possible_values": ["1.0", "1.5", "2.0", "2.5", "3.0", "3.5", "4.0"]}},
        "control": {"type": "lut", "lut": {"n_bins": 1, "dim": 2048, "tokenizer": "noop", "possible_values": ["ok"]}},
    },
    "fuser": {"cross_attention_pos_emb": True, "cross_attention_pos_emb_scale": 1,
              "sum": ["control", "cfg"], "prepend": [], "cross": ["speaker_wavs"]},
    "cross_attention": True, "tts_config": {"audio_delay": 1.28, "second_stream_ahead": 2},
    "model_id": {"sig": "1e68beda", "epoch": 240},
    "depformer_weights_per_step_schedule": [*range(8), *[8] * 8, *[9] * 8, *[10] * 8],
    "model_type": "tts", "lm_gen_config": {"temp": 0.6, "text_temp": 0.6},
    "tokenizer_name": "tokenizer_spm_8k_en_fr_audio.model",
    "mimi_name": "tokenizer-e351c8d8-checkpoint125.safetensors",
    "moshi_name": "dsm_tts_1e68beda@240.safetensors",
}  # fmt: skip
_0_75B: dict[str, Any] = {
    **_1_6B, "n_q": 16, "dep_q": 16, "delays": [0, 0] + [2] * 15, "dim": 1024, "num_layers": 24, "text_card_out": 5,
    "cross_attention": False, "conditioners": {}, "fuser": {"cross_attention_pos_emb": False,
    "cross_attention_pos_emb_scale": 1, "sum": [], "prepend": [], "cross": []},
    "depformer_weights_per_step_schedule": [*range(8), *[8] * 8],
    "model_id": {"sig": "d6ef30c7", "epoch": 1000}, "moshi_name": "dsm_tts_d6ef30c7@1000.safetensors",
}  # fmt: skip
_SMALL_SHAPE: dict[str, Any] = {
    "n_q": 8, "dep_q": 8, "delays": [0, 0] + [2] * 7, "card": 256, "dim": 128, "text_card": 512, "num_heads": 4,
    "num_layers": 3, "context": 64, "depformer_dim": 64, "depformer_num_heads": 4, "depformer_num_layers": 2,
    "depformer_dim_feedforward": 192, "depformer_low_rank_embeddings": 16,
    "depformer_weights_per_step_schedule": [0, 1, 2, 3, 4, 4, 5, 5], "tokenizer_name": "tokenizer.model",
    "mimi_name": "mimi.safetensors", "mimi_config_name": "mimi_config.json", "moshi_name": "model.safetensors",
    "model_id": {"sig": "deadbeef", "epoch": 1},
}  # fmt: skip
SMALL_MIMI: dict[str, Any] = {
    "sample_rate": 24000, "channels": 1, "frame_rate": 12.5,
    "seanet": {"channels": 1, "dimension": 64, "causal": True, "n_filters": 8, "n_residual_layers": 1,
               "activation": "ELU", "compress": 2, "dilation_base": 2, "disable_norm_outer_blocks": 0,
               "kernel_size": 7, "residual_kernel_size": 3, "last_kernel_size": 3, "norm": "none",
               "pad_mode": "constant", "ratios": [8, 6, 5, 4], "true_skip": True},
    "quantizer": {"dimension": 32, "n_q": 16, "bins": 256, "input_dimension": 64, "output_dimension": 64},
    "transformer": {"d_model": 64, "num_heads": 4, "num_layers": 2, "causal": True, "layer_scale": 0.01,
                    "context": 250, "conv_layout": True, "max_period": 10000, "gating": "none", "norm": "layer_norm",
                    "positional_embedding": "rope", "dim_feedforward": 256, "input_dimension": 64,
                    "output_dimensions": [64]},
}  # fmt: skip

SIZES = ("small", "small-prompted", "1.6b", "0.75b")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", help="where to write it; made if it does not exist")
    parser.add_argument("--size", default="small", choices=SIZES, help="small is 11 MB, 1.6b is 4 GB (default: small)")
    parser.add_argument("--seed", type=int, default=0, help="same size and seed, same weights (default: 0)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the language model")
    parser.add_argument("--voices", type=int, default=2, help="how many random voices (default: 2)")


def run(call: Call) -> int:
    args = call.args
    directory = Path(args.directory)
    if (directory / "config.json").exists():  # a random one has the names of a published one: it would overwrite it
        raise Usage(f"{directory} holds a checkpoint already", "remove it, or name another directory")
    make(directory, args.size, seed=args.seed, dtype=getattr(torch, args.dtype), voices=args.voices)
    files = {p.name: p.stat().st_size for p in sorted(directory.iterdir()) if p.is_file()}
    call.fact({"directory": str(directory), "files": files}, "\n".join(f"{n} {s}" for n, s in files.items()))
    return 0


def raw_config(size: str) -> dict[str, Any]:
    """The config.json of a size. "small" has every feature of 1.6b, "small-prompted" every one of 0.75b."""
    if size not in SIZES:
        raise NameUnknown("size", size, SIZES)
    raw = copy.deepcopy(_0_75B if size in ("0.75b", "small-prompted") else _1_6B)
    if size.startswith("small"):
        raw |= copy.deepcopy(_SMALL_SHAPE)
        for name, dim in (("speaker_wavs", 32), ("control", 16)):
            if name in raw["conditioners"]:
                spec = raw["conditioners"][name]
                spec[spec["type"]]["dim"] = dim
    return raw


def random_tensors(
    shapes: Mapping[str, Shape], seed: int, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[str, Tensor]]:
    """Sane random values for every name, in the names' order."""
    draws = torch.Generator().manual_seed(seed)
    for name in sorted(shapes):
        shape = shapes[name]
        value = torch.randn(shape, generator=draws)
        if name.endswith("alpha") or ("norm" in name and name.endswith("weight")):
            value = 1.0 + 0.1 * value
        elif name.endswith("bias"):
            value = 0.02 * value
        elif name.endswith("scale"):
            value = 0.1 + 0.02 * value
        elif name.endswith("learnt_padding"):
            value = 0.2 * value
        elif name.endswith("_initialized"):
            value = torch.ones(shape)
        elif name.endswith("cluster_usage"):
            value = 0.5 + value.abs()
        elif not re.search(r"emb(ed)?(\.\d+)?\.weight$|embedding_sum$", name):
            value = value / math.sqrt(max(1, value[0].numel() if value.dim() > 1 else value.numel()))
        if name == "text_linear.weight":
            value[[NEW_WORD, PAD]] *= ASKING_GAIN
        yield name, value.to(torch.float32 if name.startswith(CONDITIONS) else dtype)


def make(
    directory: Path, size: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, voices: int = 2
) -> ModelConfig:
    """Writes a whole checkpoint: configuration, model, codec, tokenizer, voices."""
    raw = raw_config(size)
    config = configs.parse(raw)
    directory.mkdir(parents=True, exist_ok=True)
    weights.write(directory / config.model_file, dict(random_tensors(layout.expected(config), seed, dtype)))
    mimi = SMALL_MIMI if config.codec_config_file else None
    weights.write(
        directory / config.codec_file,
        dict(random_tensors(expected_shapes(parse_mimi_config(mimi)), seed + 1)),
    )
    if config.codec_config_file:
        (directory / config.codec_config_file).write_text(json.dumps(mimi, indent=1), encoding="utf-8")
    train_tokenizer(directory / config.tokenizer_file, min(config.text_card, TOKENIZER_PIECES_MAX))
    _write_voices(directory, config, size, seed + 2, voices)
    (directory / "config.json").write_text(json.dumps(raw, indent=1), encoding="utf-8")
    return config


def _write_voices(directory: Path, config: ModelConfig, size: str, seed: int, count: int) -> None:
    spec = config.conditioner("speaker_wavs")
    if spec is None:
        return
    length = SMALL_VOICE_POSITIONS if size.startswith("small") else FULL_VOICE_POSITIONS
    draws = torch.Generator().manual_seed(seed)
    for n in range(count):
        embedding = torch.randn(1, spec.dim, length, generator=draws)
        identity = {"sig": config.sig, "epoch": str(config.epoch)}
        weights.write(directory / f"voice{n}.wav{config.voice_suffix}", {"speaker_wavs": embedding}, identity)


def train_tokenizer(path: Path, pieces: int) -> None:
    """A SentencePiece model over the standard library's own English, with the published special ids."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_prose()), model_prefix=str(path.with_suffix("")), vocab_size=pieces, unk_id=0, bos_id=1,
        eos_id=2, pad_id=3, byte_fallback=True, model_type="unigram", hard_vocab_limit=False, minloglevel=2,
        num_threads=1,
    )  # fmt: skip
    path.with_suffix(".vocab").unlink(missing_ok=True)


def _prose() -> Iterable[str]:
    import pydoc_data.topics

    for text in pydoc_data.topics.topics.values():
        for paragraph in text.split("\n\n"):
            line = " ".join(paragraph.split())
            if line:
                yield line
