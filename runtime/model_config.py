"""A checkpoint's config.json as a checked, frozen value. No torch, no tensors, no file names beyond config.json's own.

The layout is that of the published kyutai text-to-speech checkpoints. A key we do not know, or a value that would need
arithmetic we do not have, is refused by name: a model that loads and speaks nonsense is worse than one that does not
load. Two keys are ours: `codec` (an object with `type`, default Mimi) and `text_frontend` (default "words").
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runtime.delays import Delays, steps_of
from runtime.errors import CheckpointInvalid

T = TypeVar("T")
TEMP_MAX, CFG_MAX = 4.0, 10.0

# Keys whose only value that we implement is this one.
ONLY: dict[str, tuple[Any, ...]] = {
    "model_type": ("tts",),
    "causal": (True,),
    "layer_scale": (None,),
    "gating": ("silu",),
    "norm": ("rms_norm_f32",),
    "positional_embedding": ("rope",),
    "depformer_pos_emb": ("none",),
    "depformer_multi_linear": (True,),
    "depformer_weights_per_step": (True,),
    "depformer_gating": ("silu",),
    "depformer_norm": (None,),
    "depformer_layer_scale": (None,),
    "norm_emb": (False,),
    "bias_proj": (False,),
    "kv_repeat": (1,),
    "quantize": (False,),
    "lora": (False,),
    "lora_name": (None,),
    "extra_heads_num_heads": (0,),
}
# Keys that change nothing here: training only, or meaningless with the values above.
IGNORED = {
    "depformer_causal", "depformer_context", "depformer_max_period", "existing_text_end_padding_id",
    "gradient_checkpointing", "extra_heads_dim", "lora_rank", "lora_scaling", "stt_config",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conditioner:
    """One kind of condition. `lut`: one of `values` by name; `tensor`: vectors of `dim` handed in, such as a voice."""

    name: str
    kind: str
    dim: int
    values: tuple[str, ...] = ()
    bins: int = 0


@dataclass(frozen=True, slots=True)
class Stack:
    """A transformer: `layers` of width `dim`, whose gated MLP is `hidden` wide."""

    dim: int
    heads: int
    layers: int
    hidden: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the arithmetic depends on."""

    card: int
    n_q: int
    dep_q: int
    delays: Delays
    text_delay: int
    text_card: int
    text_card_out: int
    text_pad: int
    demux: bool
    temporal: Stack
    context: int
    max_period: float
    cross_attention: bool
    depth: Stack
    schedule: tuple[int, ...]
    low_rank: int | None
    conditioners: tuple[Conditioner, ...]
    sum_conditions: tuple[str, ...]
    cross_conditions: tuple[str, ...]
    cross_pos_emb: bool
    cross_pos_scale: float
    lookahead: int
    temp: float
    text_temp: float
    cfg: float | None
    sig: str
    epoch: int
    model_file: str
    codec_file: str
    codec_config_file: str | None
    tokenizer_file: str
    codec: Mapping[str, Any] | None
    text_frontend: str

    @property
    def weight_sets(self) -> int:
        """How many sets of weights the depth transformer has."""
        return max(self.schedule) + 1

    @property
    def voice_suffix(self) -> str:
        """What follows a voice's name in its file's name."""
        return f".{self.sig}@{self.epoch}.safetensors"

    def conditioner(self, name: str) -> Conditioner | None:
        return next((c for c in self.conditioners if c.name == name), None)

    @property
    def speaks_by_embedding(self) -> bool:
        """Voices are embeddings to attend to; otherwise they are sound to continue."""
        return self.conditioner("speaker_wavs") is not None

    @property
    def cfg_values(self) -> tuple[float, ...]:
        """The strengths the model was trained with (distilled guidance); empty: guidance takes a second pass."""
        found = self.conditioner("cfg")
        return tuple(float(v) for v in found.values) if found else ()

    @property
    def guided(self) -> bool:
        """Whether each step is also thought without the text, to be guided away from that: twice the work.

        A model that was trained with its guidance needs no second pass; nor does one whose own strength is 1.
        """
        return not self.cfg_values and self.cfg != 1.0


def mlp_hidden(dim: int, feedforward: int) -> int:
    """Width of a gated MLP that costs as much as a plain one of `feedforward`, as the reference rounds it."""
    return (21 * dim) // 8 if feedforward == 4 * dim else (2 * feedforward) // 3


def read(path: Path) -> ModelConfig:
    """The config in a checkpoint's directory. Raises CheckpointInvalid, naming the key."""
    file = path / "config.json"
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointInvalid(str(file), "there is none; give the directory of a checkpoint") from None
    except (OSError, ValueError) as why:
        raise CheckpointInvalid(str(file), f"cannot be read as JSON: {why}") from None
    if not isinstance(raw, dict):
        raise CheckpointInvalid(str(file), "must be a JSON object")
    return parse(raw)


SIZE_MAX = 1_000_000  # of a width, a count, a context: more is a slip of the pen, and would be allocated
DELAY_MAX, LAYERS_MAX = 100, 1000


class _Keys:
    """The keys of one JSON object, each taken once; what is left at the end is unknown."""

    def __init__(self, raw: Any, where: str) -> None:
        if not isinstance(raw, Mapping):
            raise CheckpointInvalid(where, f"must be a JSON object, is {raw!r}")
        self._raw, self._where, self._left = raw, where, set(raw)

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        self._left.discard(key)
        value = self._raw.get(key, default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) <= SIZE_MAX else math.inf
        if isinstance(value, float) and not math.isfinite(value):
            raise CheckpointInvalid(f"{self._where}: {key}", f"must be a finite number, is {self._raw[key]!r}")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found = "missing" if key not in self._raw else f"{self._raw[key]!r}"
            raise CheckpointInvalid(f"{self._where}: {key}", f"must be of type {kind.__name__}, is {found}")
        return value

    def maybe(self, key: str, kind: type[T]) -> T | None:
        if self._raw.get(key) is None:
            self._left.discard(key)
            return None
        return self.take(key, kind)

    def positive(self, key: str, most: int = SIZE_MAX) -> int:
        value = self.take(key, int)
        if not 1 <= value <= most:
            raise CheckpointInvalid(f"{self._where}: {key}", f"must be at least 1, at most {most}, is {value}")
        return value

    def maybe_positive(self, key: str) -> int | None:
        return None if self.maybe(key, int) is None else self.positive(key)

    def listed(self, key: str, kind: type[T], default: list[T] | None = None) -> tuple[T, ...]:
        """A list whose members are all of one type."""
        values = self.take(key, list, default)
        if not all(isinstance(v, kind) and not isinstance(v, bool) for v in values):
            raise CheckpointInvalid(f"{self._where}: {key}", f"must hold values of type {kind.__name__}, is {values}")
        return tuple(values)

    def within(self, key: str, default: float, low: float, high: float) -> float:
        value = self.take(key, float, default)
        if not low <= value <= high:
            raise CheckpointInvalid(f"{self._where}: {key}", f"must lie between {low:g} and {high:g}, is {value:g}")
        return value

    def file(self, key: str, default: str) -> str:
        """The name of a file beside config.json; one that leads elsewhere is refused."""
        name = self.take(key, str, default) if self._raw.get(key, default) is not None else default
        self._left.discard(key)
        if "/" in name or "\\" in name or name in (".", "..") or not name.isprintable():
            raise CheckpointInvalid(f"{self._where}: {key}", f"must be a plain file name, is {name!r}")
        return name

    def only(self, key: str, allowed: tuple[Any, ...]) -> None:
        self._left.discard(key)
        if key in self._raw and self._raw[key] not in allowed:
            words = " or ".join(repr(a) for a in allowed)
            raise CheckpointInvalid(f"{self._where}: {key}", f"only {words} is implemented, is {self._raw[key]!r}")

    def done(self, ignored: set[str]) -> None:
        unknown = sorted(self._left - ignored)
        if unknown:
            raise CheckpointInvalid(f"{self._where}: {unknown[0]}", "unknown key; it may change the arithmetic")


def parse(raw: Mapping[str, Any]) -> ModelConfig:
    """The checked value of a config.json. Raises CheckpointInvalid, naming the key."""
    keys = _Keys(raw, "config.json")
    for key, allowed in ONLY.items():
        keys.only(key, allowed)
    n_q, dep_q = keys.positive("n_q"), keys.positive("dep_q")
    if dep_q != n_q:
        raise CheckpointInvalid("config.json: dep_q", f"must equal n_q ({n_q}): all streams are ours, is {dep_q}")
    temporal, depth = _stacks(keys)
    text_card = keys.positive("text_card")
    conditioners = _conditioners(keys.take("conditioners", dict, {}))
    delay_steps, lookahead = _rhythm(keys)
    delays = _delays(keys.listed("delays", int), n_q)
    fused = _fusing(keys, conditioners)
    generation = _Keys(keys.maybe("lm_gen_config", dict) or {}, "config.json: lm_gen_config")
    identity = _Keys(keys.maybe("model_id", dict) or {}, "config.json: model_id")
    config = ModelConfig(
        card=keys.positive("card"), n_q=n_q, dep_q=dep_q,
        delays=Delays(delay_steps, delays[1:]), text_delay=delays[0],
        text_card=text_card, text_card_out=keys.maybe_positive("text_card_out") or text_card,
        text_pad=keys.take("existing_text_padding_id", int, 3), demux=lookahead > 0,
        temporal=temporal, context=keys.positive("context"), max_period=keys.take("max_period", float, 10000.0),
        cross_attention=bool(fused.cross), depth=depth, schedule=_schedule(keys, dep_q),
        low_rank=keys.maybe_positive("depformer_low_rank_embeddings"), conditioners=conditioners,
        sum_conditions=fused.sums, cross_conditions=fused.cross, cross_pos_emb=fused.pos_emb,
        cross_pos_scale=fused.pos_scale, lookahead=lookahead,
        temp=generation.within("temp", 0.6, 0, TEMP_MAX), text_temp=generation.within("text_temp", 0.6, 0, TEMP_MAX),
        cfg=None if generation.maybe("cfg", float) is None else generation.within("cfg", 1.0, 0, CFG_MAX),
        sig=identity.take("sig", str, ""), epoch=identity.take("epoch", int, 0),
        model_file=keys.file("moshi_name", "model.safetensors"),
        codec_file=keys.file("mimi_name", "tokenizer-e351c8d8-checkpoint125.safetensors"),
        codec_config_file=keys.file("mimi_config_name", "") or None,
        tokenizer_file=keys.file("tokenizer_name", "tokenizer_spm_8k_en_fr_audio.model"),
        codec=keys.maybe("codec", dict), text_frontend=keys.take("text_frontend", str, "words"),
    )  # fmt: skip
    keys.done(IGNORED)
    if config.text_pad != 3 or config.text_delay != 0:
        raise CheckpointInvalid("config.json: existing_text_padding_id", "only 3, with delays[0] = 0, is implemented")
    return config


def _stacks(keys: _Keys) -> tuple[Stack, Stack]:
    dim, depth_dim = keys.positive("dim"), keys.positive("depformer_dim")
    scale = keys.take("hidden_scale", float, 4.125)
    layers, depth_layers = (keys.positive(f"{of}num_layers", LAYERS_MAX) for of in ("", "depformer_"))
    temporal = Stack(dim, keys.positive("num_heads"), layers, mlp_hidden(dim, int(scale * dim)))
    depth_ff = keys.maybe_positive("depformer_dim_feedforward") or int(scale * depth_dim)
    depth = Stack(
        depth_dim, keys.positive("depformer_num_heads"), depth_layers, mlp_hidden(depth_dim, depth_ff)
    )
    for name, stack in (("dim", temporal), ("depformer_dim", depth)):
        if stack.dim % (2 * stack.heads):
            raise CheckpointInvalid(f"config.json: {name}", f"{stack.dim} is no even multiple of {stack.heads} heads")
    return temporal, depth


@dataclass(frozen=True, slots=True)
class _Fused:
    sums: tuple[str, ...]
    cross: tuple[str, ...]
    pos_emb: bool
    pos_scale: float


def _fusing(keys: _Keys, conditioners: tuple[Conditioner, ...]) -> _Fused:
    """Which condition goes where."""
    fuser = _Keys(keys.maybe("fuser", dict) or {}, "config.json: fuser")
    fuser.only("prepend", ([],))
    fused = _Fused(
        _names(fuser, "sum", conditioners), _names(fuser, "cross", conditioners),
        fuser.take("cross_attention_pos_emb", bool, False), fuser.take("cross_attention_pos_emb_scale", float, 1.0),
    )  # fmt: skip
    fuser.done(set())
    attends = keys.take("cross_attention", bool, False)
    if attends != bool(fused.cross):
        raise CheckpointInvalid(
            "config.json: cross_attention", f"is {attends}, but fuser.cross names {list(fused.cross)}"
        )
    for condition in conditioners:
        if condition.name in fused.sums and condition.kind != "lut":
            raise CheckpointInvalid("config.json: fuser.sum", f"names {condition.name!r}, which is no single vector")
    return fused


def _rhythm(keys: _Keys) -> tuple[int, int]:
    """Steps by which the text runs ahead of the sound, and words of look-ahead."""
    tts = _Keys(keys.take("tts_config", dict), "config.json: tts_config")
    delay_steps = steps_of(tts.take("audio_delay", float))
    if not 0 <= delay_steps <= DELAY_MAX:
        raise CheckpointInvalid("config.json: tts_config: audio_delay", f"is {delay_steps} steps, at most {DELAY_MAX}")
    lookahead = tts.take("second_stream_ahead", int, 0)
    tts.only("multistream", (False,))
    tts.done(set())
    demux = keys.take("demux_second_stream", bool, False)
    if demux != (lookahead > 0):
        raise CheckpointInvalid(
            "config.json: demux_second_stream", f"is {demux}, but tts_config.second_stream_ahead is {lookahead}"
        )
    return delay_steps, lookahead


def _delays(raw: tuple[int, ...], n_q: int) -> tuple[int, ...]:
    if len(raw) != n_q + 1 or not all(0 <= d <= DELAY_MAX for d in raw):
        raise CheckpointInvalid(
            "config.json: delays", f"must be {n_q + 1} step counts (text, then codebooks), is {list(raw)}"
        )
    return raw


def _schedule(keys: _Keys, dep_q: int) -> tuple[int, ...]:
    name = "depformer_weights_per_step_schedule"
    schedule = tuple(range(dep_q)) if keys.maybe(name, list) is None else keys.listed(name, int)
    if len(schedule) != dep_q or sorted(set(schedule)) != list(range(len(set(schedule)))):
        raise CheckpointInvalid(
            f"config.json: {name}", f"must name weight sets 0..n for {dep_q} codebooks, is {list(schedule)}"
        )
    return schedule


def _conditioners(raw: Mapping[str, Any]) -> tuple[Conditioner, ...]:
    found = []
    for name, spec in raw.items():
        keys = _Keys(spec, f"config.json: conditioners.{name}")
        kind = keys.take("type", str)
        body = _Keys(keys.take(kind, dict), f"config.json: conditioners.{name}.{kind}")
        keys.done(set())
        if kind == "tensor":
            found.append(Conditioner(name, kind, body.positive("dim")))
        elif kind == "lut":
            body.only("tokenizer", ("noop",))
            values = tuple(str(v) for v in body.take("possible_values", list))
            found.append(Conditioner(name, kind, body.positive("dim"), values, body.positive("n_bins")))
        else:
            raise CheckpointInvalid(f"config.json: conditioners.{name}.type", f"must be lut or tensor, is {kind!r}")
        body.done({"init_scale"})
    return tuple(found)


def _names(fuser: _Keys, how: str, conditioners: tuple[Conditioner, ...]) -> tuple[str, ...]:
    known = {c.name for c in conditioners}
    names = fuser.listed(how, str, [])
    for name in names:
        if name not in known:
            raise CheckpointInvalid(f"config.json: fuser.{how}", f"names {name!r}, which is no conditioner")
    return names
