"""Stage 6 of the demo voice: a training state to a checkpoint directory in the published layout.

The check of this stage: the product's own loader reads the directory strictly, and its temporal and depth arithmetic
gives the training twin's logits on a short stream.

    python -m runtime.train.export --run WORK/run --codec WORK/codec.safetensors --lexicon WORK/lexicon.tsv.gz --out DIR
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runtime import weights
from runtime.phonemes import LEXICON_FILE
from runtime.train.codec_fit import ENTRIES, SlotCodec
from runtime.train.dataset import FRAME_S, PAD
from runtime.train.network import DepthLayer, Shape, TemporalLayer, Voice
from runtime.train.tokenizer import piece_sounds

MODEL, CODEC, TOKENIZER = "model.safetensors", "codec.safetensors", "tokenizer.model"


def config(shape: Shape, step: int, temp: float, text_temp: float, cfg: float) -> dict[str, Any]:
    """config.json, with the published keys and the two of ours."""
    return {
        "card": ENTRIES, "n_q": shape.books, "dep_q": shape.books, "delays": [0] * (shape.books + 1),
        "dim": shape.dim, "text_card": shape.text_card, "existing_text_padding_id": PAD, "num_heads": shape.heads,
        "num_layers": shape.layers, "hidden_scale": shape.hidden * 1.5 / shape.dim, "causal": True,
        "layer_scale": None, "context": shape.context, "max_period": 10000, "gating": "silu", "norm": "rms_norm_f32",
        "positional_embedding": "rope", "depformer_dim": shape.depth_dim, "depformer_num_heads": shape.depth_heads,
        "depformer_num_layers": shape.depth_layers, "depformer_dim_feedforward": shape.depth_hidden * 3 // 2,
        "depformer_multi_linear": True, "depformer_pos_emb": "none", "depformer_weights_per_step": True,
        "depformer_weights_per_step_schedule": list(range(shape.books)), "demux_second_stream": False,
        "text_card_out": PAD + 1, "conditioners": {}, "cross_attention": False,
        "tts_config": {"audio_delay": round(shape.delay * FRAME_S, 4), "second_stream_ahead": 0},
        "model_id": {"sig": "demo", "epoch": step}, "model_type": "tts",
        "lm_gen_config": {"temp": temp, "text_temp": text_temp, "cfg": cfg},
        "moshi_name": MODEL, "mimi_name": CODEC, "tokenizer_name": TOKENIZER,
        "codec": {"type": "spectral", "slots": 4, "stages": 2},
        "text_frontend": "phonemes-en",
    }


def tensors(model: Voice) -> dict[str, Tensor]:
    """Every tensor of the published layout, in float32."""
    tables = model.tables()
    out: dict[str, Tensor] = {"text_emb.weight": tables["text"], "out_norm.alpha": model.out_gain[None, None],
                              "text_linear.weight": model.asks, "depformer_text_emb.weight": tables["depth_text"]}
    for q, table in enumerate(tables["codes"]):
        out[f"emb.{q}.weight"] = table
    for q, table in enumerate(tables["depth_codes"]):
        # The published table has one more row, for the code before the first; the depth transformer never asks for it.
        out[f"depformer_emb.{q}.weight"] = torch.cat([table, torch.zeros_like(table[:1])])
    for q in range(model.shape.books):
        out[f"linears.{q}.weight"] = tables["heads"][q]
        out[f"depformer_in.{q}.weight"] = model.depth_in[q]
    for i, layer in enumerate(model.layers):
        assert isinstance(layer, TemporalLayer)
        at = f"transformer.layers.{i}."
        out |= {f"{at}norm1.alpha": layer.gain1[None, None], f"{at}norm2.alpha": layer.gain2[None, None],
                f"{at}self_attn.in_proj_weight": torch.cat([layer.q, layer.k, layer.v]),
                f"{at}self_attn.out_proj.weight": layer.o,
                f"{at}gating.linear_in.weight": torch.cat([layer.gate, layer.up]),
                f"{at}gating.linear_out.weight": layer.down}
    for i, layer in enumerate(model.depth):
        assert isinstance(layer, DepthLayer)
        at = f"depformer.layers.{i}."
        out |= {f"{at}norm1.alpha": layer.gain1[None, None], f"{at}norm2.alpha": layer.gain2[None, None],
                f"{at}self_attn.in_proj_weight": torch.cat([layer.q, layer.k, layer.v], 1).flatten(0, 1),
                f"{at}self_attn.out_proj.weight": layer.o.flatten(0, 1)}
        for q in range(model.shape.books):
            out[f"{at}gating.{q}.linear_in.weight"] = torch.cat([layer.gate[q], layer.up[q]])
            out[f"{at}gating.{q}.linear_out.weight"] = layer.down[q]
    return {name: tensor.detach().clone() for name, tensor in out.items()}


def restore(run: Path, codec: SlotCodec, averaged: bool = True) -> tuple[Voice, dict[str, Any]]:
    """The model of a run and its saved state."""
    from sentencepiece import SentencePieceProcessor

    state = torch.load(run / "state.pt", weights_only=False, map_location="cpu")
    shape = Shape(**state["shape"])
    tokenizer = SentencePieceProcessor(model_file=str(run / TOKENIZER))
    model = Voice(shape, codec.books, piece_sounds(tokenizer, shape.text_card))
    model.load_state_dict(state["average" if averaged else "model"])
    return model, state


def write(
    out: Path, model: Voice, *, codec_path: Path, lexicon: Path, tokenizer: Path, step: int,
    dtype: torch.dtype = torch.bfloat16, temp: float = 0.3, text_temp: float = 0.3, cfg: float = 1.0,
) -> dict[str, int]:  # fmt: skip
    """Writes the checkpoint directory; how many tensors and parameters its model has."""
    out.mkdir(parents=True, exist_ok=True)
    flat = {name: t.to(dtype) for name, t in tensors(model).items()}
    weights.write(out / MODEL, flat)
    weights.write(out / CODEC, {k: v for k, v in weights.read(codec_path).items() if not k.startswith("encoder.")})
    shutil.copyfile(tokenizer, out / TOKENIZER)
    shutil.copyfile(lexicon, out / LEXICON_FILE)
    (out / "config.json").write_text(json.dumps(config(model.shape, step, temp, text_temp, cfg), indent=1) + "\n")
    return {"tensors": len(flat), "parameters": sum(t.numel() for t in flat.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("run", "codec", "lexicon", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--temp", type=float, default=0.3)
    parser.add_argument("--text-temp", type=float, default=0.3)
    parser.add_argument("--cfg", type=float, default=1.0)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--live", action="store_true", help="the live weights, not their average")
    args = parser.parse_args()
    model, state = restore(args.run, SlotCodec(args.codec), not args.live)
    made = write(
        args.out, model, codec_path=args.codec, lexicon=args.lexicon, tokenizer=args.run / TOKENIZER,
        step=int(state["step"]), dtype=getattr(torch, args.dtype), temp=args.temp, text_temp=args.text_temp,
        cfg=args.cfg,
    )  # fmt: skip

    from runtime.checkpoint import load

    load(args.out)
    size = sum(p.stat().st_size for p in args.out.iterdir())
    print(json.dumps({"step": state["step"], "cpu_s": round(state["cpu_s"]), "bytes": size, **made}))


if __name__ == "__main__":
    main()
