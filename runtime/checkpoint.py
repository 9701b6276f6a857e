"""From a directory of verified files to an engine that speaks: which file is what, read strictly.

It owns the order of loading. It knows nothing of how the files came there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime import model_config as configs
from runtime import phonemes, weight_ring, weights
from runtime.cloning import clip_prompts
from runtime.config import ModelSettings
from runtime.engine import SpeechEngine, Trace
from runtime.entries import Encode, EntryMaker, PlainFeed, keeping
from runtime.errors import CheckpointInvalid, NameUnknown, SpecInvalid, SpeechError, Usage
from runtime.graphs import CapturedStep, CompiledStep, EagerStep, MakeRunner
from runtime.model import layout
from runtime.model.codec import Codec, codebook_counts, load_codec
from runtime.model.layout import SpeechModel
from runtime.model_config import ModelConfig
from runtime.port import StreamSpec, TextFeed
from runtime.text import TextFrontEnd
from runtime.text_feed import ProseFeed
from runtime.text_rules import chosen_rules
from runtime.voices import Voices
from runtime.wordfeed import PAD

RUNNERS: dict[str, MakeRunner] = {"eager": EagerStep, "compiled": CompiledStep, "captured": CapturedStep}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.bfloat16}  # int8: of the weights alone


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's parts, loaded and checked."""

    config: ModelConfig
    model: SpeechModel
    codec: Codec
    voices: Voices
    encode: Encode
    text_rules: tuple[str, ...] = ()

    def make_feed(self, spec: StreamSpec) -> TextFeed:
        """A fresh text feed for one stream."""
        maker = EntryMaker(self.encode, spec.padding_between, self.config.speaks_by_embedding)
        rules = self.text_rules if spec.text_rules is None else spec.text_rules
        if not rules and not spec.pronunciations:
            return PlainFeed(maker)
        return ProseFeed(TextFrontEnd(rules, spec.pronunciations), maker)


def load(
    directory: Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    codebooks: int | None = None,
    check_values: bool = True,
    text_rules: tuple[str, ...] = (),
    step: str = "eager",
) -> Checkpoint:
    """Everything in a checkpoint's directory, its matrices in the form that the kind of step takes.

    Raises CheckpointInvalid, in one line naming the file and the tensor.
    """
    if dtype not in DTYPES:
        raise NameUnknown("dtype", dtype, DTYPES)
    config = configs.read(directory)
    made_of = codec_config(directory, config)
    there = codebook_counts(made_of, config.dep_q)
    if codebooks is not None and codebooks not in there:
        raise SpecInvalid("codebooks", f"this checkpoint speaks {', '.join(map(str, there))}, not {codebooks}")
    chosen_rules(text_rules)  # a wrong name fails here, not at the first stream
    where = torch.device(device)
    if dtype == "int8" and where.type != "cpu":
        raise SpecInvalid("dtype", "int8 is for processors only; use bfloat16")
    _check_there_is(where)
    tensors = _tensors(directory / config.model_file, where)
    weights.check(tensors, layout.expected(config), config.model_file, values=check_values)
    is_steady = step == "eager" and where.type == "cpu"
    model = layout.assemble(
        config, tensors, dtype=DTYPES[dtype], device=where, codebooks=codebooks, int8=dtype == "int8",
        is_steady=is_steady,
    )  # fmt: skip
    codec = load_codec(
        _tensors(directory / config.codec_file, where), made_of,
        n_q=model.depth.codebooks, device=where, is_steady=is_steady,
    )  # fmt: skip
    encode = keeping(_read_as(directory, config, _tokenizer(directory / config.tokenizer_file)))
    return Checkpoint(config, model, codec, Voices(directory, config), encode, text_rules)


def _check_there_is(where: torch.device) -> None:
    """Raise SpeechError where this machine has no such device: torch would say so deep in the loading."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if where.type == "cuda" and (where.index or 0) >= devices:
        there = f"{devices} CUDA devices" if devices else "no CUDA device"
        raise SpeechError(f"device {where}: {there} can be used here; use --device cpu, or look at nvidia-smi")


def start(settings: ModelSettings, trace: Trace | None = None) -> SpeechEngine:
    """The engine that the settings describe, ready to speak: loaded, compiled and captured."""
    if not settings.model.is_dir():  # a wrong name is no damaged checkpoint: exit 2, not 3
        raise Usage(f"there is no directory {settings.model}", "name the checkpoint's with --model")
    torch.set_num_threads(settings.threads)
    checkpoint = load(
        settings.model, dtype=settings.dtype, device=settings.device, codebooks=settings.codebooks or None,
        check_values=settings.check_values, text_rules=settings.text_rules, step=settings.step,
    )  # fmt: skip
    engine = SpeechEngine(
        checkpoint.model, checkpoint.codec, checkpoint.voices, checkpoint.make_feed, RUNNERS[settings.step],
        lanes=settings.lanes, patience=settings.lookahead, trace=trace,
        prompts=clip_prompts(
            checkpoint.codec, checkpoint.voices, by_embedding=checkpoint.config.speaks_by_embedding
        ),
    )  # fmt: skip
    engine.prepare()
    return engine


def codec_config(directory: Path, config: ModelConfig) -> dict[str, Any] | None:
    """What config.json says of the codec, or the file it names; None is the published Mimi."""
    if config.codec is not None:
        return dict(config.codec)
    if config.codec_config_file is None:
        return None
    path = directory / config.codec_config_file
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as why:
        raise CheckpointInvalid(str(path), f"cannot be read as JSON: {why}") from None
    if not isinstance(raw, dict):
        raise CheckpointInvalid(str(path), "must be a JSON object")
    return raw


def _read_as(directory: Path, config: ModelConfig, encode: Encode) -> Encode:
    """`encode` for what the model's text is made of: words as they are written, or their sounds."""
    if config.text_frontend == "words":
        return encode
    if config.text_frontend != "phonemes-en":
        raise CheckpointInvalid("config.json: text_frontend", f"words or phonemes-en, is {config.text_frontend!r}")
    path = directory / phonemes.LEXICON_FILE
    try:
        phonemizer = phonemes.load(path)
    except (OSError, ValueError) as why:
        raise CheckpointInvalid(str(path), f"is not a readable lexicon: {why}") from None
    # What the tokenizer does not know has the id of "new word", which only the word feed may say.
    return lambda text: [token for token in encode(phonemizer.text(text)) if token > PAD]


def _tensors(path: Path, where: torch.device) -> dict[str, torch.Tensor]:
    """A file's tensors: mapped for the CPU, through the pinned ring for a device."""
    return weights.read(path) if where.type == "cpu" else weight_ring.read_to(path, where)


def _tokenizer(path: Path) -> Encode:
    from sentencepiece import SentencePieceProcessor

    try:
        processor = SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as why:
        raise CheckpointInvalid(str(path), f"is not a readable SentencePiece model: {why}") from None
    return lambda text: list(processor.encode(text))
