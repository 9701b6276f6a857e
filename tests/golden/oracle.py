"""Runs the public reference (moshi 0.2.13) on a checkpoint directory, with our noise, and writes down what it does.

Only for make_golden.py and the tests marked `oracle`: the product never imports it. The reference samples by an
exponential race over the top k; here its draws are replaced by those of runtime.model.sampling.Noise, in the order in
which it asks for them: one for the text, one for each codebook.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.model.sampling import Noise
from runtime.port import Entry

os.environ.setdefault("NO_TORCH_COMPILE", "1")


@dataclass
class Heard:
    """What the reference did, step by step."""

    text_tokens: list[int]
    codes: np.ndarray  # [K, T]: frames, delays undone
    words: list[tuple[str, int]]
    end_step: int | None
    pcm: np.ndarray
    text_logits: list[np.ndarray] = field(default_factory=list)
    depth_logits: list[np.ndarray] = field(default_factory=list)


@dataclass
class _Draws:
    noise: Noise
    codebooks: int
    step: int = -1
    asked: int = 0
    text: np.ndarray | None = None
    audio: np.ndarray | None = None

    def next_step(self) -> None:
        self.step, self.asked, self.text = self.step + 1, 0, None

    def take(self, size: int) -> np.ndarray:
        if self.asked == 0:
            self.text = np.empty(size, np.float32)
            self.noise.fill(self.step, self.text, None)
            self.asked = 1
            return self.text
        if self.asked == 1:
            # The same counter again: the text's draws come first, then the codes'.
            assert self.text is not None
            self.audio = np.empty((self.codebooks, size), np.float32)
            self.noise.fill(self.step, np.empty_like(self.text), self.audio)
        assert self.audio is not None
        self.asked += 1
        return self.audio[self.asked - 2]


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[Any]:
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield old
    finally:
        setattr(owner, name, old)


def load(directory: Path, *, dtype: torch.dtype = torch.float32, n_q: int | None = None, **more: Any) -> Any:
    from moshi.models import loaders
    from moshi.models.tts import TTSModel

    raw = json.loads((directory / "config.json").read_text())
    info = loaders.CheckpointInfo.from_hf_repo(
        "local/none", moshi_weights=directory / raw["moshi_name"], mimi_weights=directory / raw["mimi_name"],
        tokenizer=directory / raw["tokenizer_name"], config_path=directory / "config.json",
        mimi_config_path=directory / raw["mimi_config_name"] if raw.get("mimi_config_name") else None,
    )  # fmt: skip
    return TTSModel.from_checkpoint_info(info, n_q=n_q or raw["n_q"], device="cpu", dtype=dtype, **more)


def listen(
    model: Any,
    entries: Sequence[Entry],
    *,
    voices: Sequence[Path] = (),
    cfg: float | None = None,
    temp: float = 0.0,
    seed: int = 0,
    steps_max: int = 2000,
    prompt: np.ndarray | None = None,
    logits: bool = False,
    sound: bool = True,
) -> Heard:
    """One stream, alone. prompt: codes [P, K] to continue."""
    from moshi.models import lm
    from moshi.models.tts import Entry as TheirEntry
    from moshi.utils import sampling

    model.temp, model.max_gen_length = temp, steps_max
    draws = _Draws(Noise(seed), model.n_q)
    heard = Heard([], np.zeros(0), [], None, np.zeros(0, np.float32))
    forward, sample = model.lm.forward_text, lm.sample_token

    def forward_text(*args: Any, **kwargs: Any) -> Any:
        draws.next_step()
        return forward(*args, **kwargs)

    def multinomial(probs: torch.Tensor, num_samples: int, **_: Any) -> torch.Tensor:
        assert num_samples == 1
        return (probs / torch.from_numpy(draws.take(probs.shape[-1]))).argmax(dim=-1, keepdim=True)

    calls = [0]

    def sample_token(logits_: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if logits:
            fresh = calls[0] != draws.step
            (heard.text_logits if fresh else heard.depth_logits).append(logits_.float().reshape(-1).numpy().copy())
        calls[0] = draws.step
        return sample(logits_, *args, **kwargs)

    calls[0] = -1
    theirs = [TheirEntry(list(e.tokens), e.text, e.padding) for e in entries]
    attributes, prefixes = _given(model, voices, cfg, prompt)
    with (
        replaced(model.lm, "forward_text", forward_text),
        replaced(sampling, "multinomial", multinomial),
        replaced(lm, "sample_token", sample_token),
    ):
        result = model.generate([theirs], attributes, prefixes=prefixes)
    heard.text_tokens = [out for _, out in result.logged_text_tokens[0]]
    heard.codes = torch.cat(result.frames, -1)[0, 1:].numpy()
    heard.words, heard.end_step = result.all_transcripts[0], result.end_steps[0]
    if sound:
        heard.pcm = _decode(model, result.frames)
    return heard


def _given(model: Any, voices: Sequence[Path], cfg: float | None, prompt: np.ndarray | None) -> tuple[Any, Any]:
    """The reference's condition attributes and prefixes."""
    attributes, prefixes = [], None
    if voices or model.valid_cfg_conditionings:
        attributes = [model.make_condition_attributes(list(voices), cfg_coef=cfg)]
    elif cfg is not None:
        model.cfg_coef = cfg
    if prompt is not None:
        codes = torch.from_numpy(prompt.T.copy())
        prefixes = [torch.cat([torch.full_like(codes[:1], -1), codes])]
    return attributes, prefixes


def _decode(model: Any, frames: Sequence[torch.Tensor]) -> np.ndarray:
    with torch.no_grad(), model.mimi.streaming(1):
        pcm = [model.mimi.decode(f[:, 1:].clamp(min=0)) for f in frames[model.delay_steps :]]
    return torch.cat(pcm, -1)[0, 0].numpy()
