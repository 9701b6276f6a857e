"""One step of all lanes as one function of static buffers: embed, think, choose the text, speak the codes, decode.

The same function runs eagerly, compiled or captured (graphs.py). It reads no tensor on the host, makes no shape from
contents and writes its results in place. Shapes as in lanes.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.lanes import INTS_BEFORE_FORCED, NOT_FORCED, NOTHING, LaneTensors
from runtime.model.codec import Codec
from runtime.model.depth import each_way
from runtime.model.depth_placed import DepthPlaced
from runtime.model.layout import SpeechModel
from runtime.model.sampling import MakeDraw, Race, SortedRace, likeliest
from runtime.wordfeed import NEW_WORD, PAD


@dataclass(slots=True)
class Probe:
    """Where a test may look inside a step; the engine never passes one."""

    summary: Tensor | None = None
    text_logits: Tensor | None = None
    depth_logits: list[Tensor] | None = None


class FrameStep:
    """The step of one model with one codec."""

    def __init__(self, model: SpeechModel, codec: Codec) -> None:
        config, device = model.config, model.device
        self.model, self.codec = model, codec
        self.codebooks = model.depth.codebooks
        is_placed = model.is_steady and model.dtype == torch.float32
        self._depth = DepthPlaced(model.depth) if is_placed else model.depth
        self._race: MakeDraw = SortedRace if model.is_steady else Race
        self._delays = torch.tensor(config.delays.codebook_delays, device=device)
        self._used = self._delays[: self.codebooks]
        self._first = self._used + config.delays.delay_steps  # [K]: the first step at which a code is spoken
        rows = torch.arange(config.n_q, device=device) * (config.card + 1)
        self._audio_rows = rows
        self._zero_row = model.temporal.table.shape[0] - 1
        self._text_card = config.text_card + 1
        self._text_base = config.n_q * self._text_card_audio()
        # The code of frame t in codebook q was spoken q's delay after t; the newest column is this step.
        self._columns = self._used.view(1, -1, 1)

    def _text_card_audio(self) -> int:
        return self.model.config.card + 1

    def run(self, s: LaneTensors, *, lead: bool, greedy: bool = False, probe: Probe | None = None) -> None:
        """One step for the lanes of `s` whose advance flag is set.

        lead: the temporal half alone; right only for lanes that have no codes yet. greedy: every lane has
        temperature 0, so nothing need be drawn.
        """
        config = self.model.config
        advance = s.advance
        own_first, own_second = self._split(s.text)
        rows = self._rows(s, own_first, own_second)
        offset = each_way(s.offset, s.ways)
        slot = s.rows.index * config.context + offset % config.context
        summary, text_logits = self.model.temporal.step(rows, s.condition, offset, slot, s.caches, s.hearing, s.rows)
        # Guidance never touches the text: the null rows do not hear it.
        logits = text_logits[:: s.ways].float()
        logits[:, PAD] += s.bonus[:, 0]
        chosen = likeliest(logits) if greedy else self._race(s.text_temp, s.noise_text.unsqueeze(1))(0, logits)
        asked = chosen == NEW_WORD
        token = torch.where(asked, s.ints[:, 2], s.ints[:, 1])
        if probe is not None:
            probe.summary, probe.text_logits, probe.depth_logits = summary, logits, []
        if lead:
            codes = torch.full_like(s.codes, NOTHING)
        else:
            codes, trouble = self._codes(s, summary, token, greedy, probe)
        self._advance(s, advance, asked, token, codes)
        if not lead:
            frame = s.history.gather(2, self._columns.expand(s.lanes, -1, 1)).squeeze(2)
            ready = advance & (s.offset > config.delays.first_frame_step)
            s.pcm.copy_(self.codec.decode_step(frame, s.codec, ready) + trouble)

    def make_ready(self, s: LaneTensors) -> None:
        """Makes the calls that the first steps over these lanes would make ready; nothing is computed."""
        if isinstance(self._depth, DepthPlaced):
            self._depth.make_ready(s.lanes * s.ways, self.model.temporal.dim)
        self.codec.make_ready(s.codec)

    def _split(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """The two streams' tokens in a text token, -1 for none."""
        if not self.model.config.demux:
            return text, torch.full_like(text, NOTHING)
        first = torch.where(text < 0, NOTHING, text % self._text_card)
        second = torch.where(text < 0, NOTHING, text // self._text_card - 1)
        return first, second

    def _text_rows(self, first: Tensor, second: Tensor, base: int, zero: int) -> Tensor:
        """[R, 2 or 1] rows of a table whose text part begins at `base`."""
        one = torch.where(first < 0, zero, first + base)
        if not self.model.config.demux:
            return one.unsqueeze(1)
        return torch.stack((one, torch.where(second < 0, zero, second + base + self._text_card)), dim=1)

    def _rows(self, s: LaneTensors, first: Tensor, second: Tensor) -> Tensor:
        """The rows of the temporal table that make up each row's input, [R, n_q + 1 or 2]."""
        audio = torch.where(s.audio < 0, self._zero_row, s.audio + self._audio_rows)
        own = torch.cat((audio, self._text_rows(first, second, self._text_base, self._zero_row)), dim=1)
        if s.ways == 1:
            return own
        # The null row hears neither the text nor the voice prompt; what stands for "not begun" it does hear.
        offset = s.offset.unsqueeze(1)
        begun = offset > self._delays
        prompt = offset <= self._delays + s.masked_until.unsqueeze(1)
        null_audio = torch.where(begun & prompt & (s.masked_until >= 0).unsqueeze(1), self._zero_row, audio)
        null_text = torch.where(offset > 0, self._zero_row, own[:, audio.shape[1] :])
        null = torch.cat((null_audio, null_text), dim=1)
        return torch.stack((own, null), dim=1).flatten(0, 1)

    def _codes(
        self, s: LaneTensors, summary: Tensor, token: Tensor, greedy: bool, probe: Probe | None
    ) -> tuple[Tensor, Tensor]:
        """This step's codes [B, K]: spoken, forced, or -1 where a codebook has not begun.

        And [B, 1], 0 where they were chosen by numbers, else NaN: such codes are codes like any, and would be heard.
        """
        depth = self.model.depth
        first, second = self._split(token)
        rows = self._text_rows(first, second, 0, depth.text_table.shape[0] - 1)
        rows = each_way(rows, s.ways)

        draw = None if greedy else self._race(s.temp, s.noise_audio)
        trouble: list[Tensor] = []

        def choose(k: int, logits: Tensor) -> Tensor:
            if s.ways > 1:
                own, null = logits[::2], logits[1::2]
                logits = null + (own - null) * s.guidance
            if probe is not None and probe.depth_logits is not None:
                probe.depth_logits.append(logits.clone())
            if k == self.codebooks - 1:  # what is no number before, the summary or an earlier code's, none is here
                trouble.append(logits.float().sum(1, keepdim=True).mul_(0.0))
            return likeliest(logits) if draw is None else draw(k, logits)

        spoken = self._depth.frame(summary, rows, choose, guided=s.ways > 1)
        spoken = torch.where(s.offset.unsqueeze(1) < self._first, NOTHING, spoken)
        forced = s.ints[:, INTS_BEFORE_FORCED:]
        return torch.where(forced == NOT_FORCED, spoken, forced), trouble[0]

    def _advance(self, s: LaneTensors, advance: Tensor, asked: Tensor, token: Tensor, codes: Tensor) -> None:
        """Moves the advancing lanes on by one step; the others keep every bit of their state."""
        config = self.model.config
        moves = advance.unsqueeze(1)
        offset = s.offset + advance
        heard = codes
        if self.codebooks < config.n_q:
            missing = codes.new_full((codes.shape[0], config.n_q - self.codebooks), NOTHING)
            heard = torch.cat((codes, missing), dim=1)
        heard = torch.where(offset.unsqueeze(1) <= self._delays, config.card, heard)
        shifted = torch.cat((s.history[:, :, 1:], codes.unsqueeze(2)), dim=2)
        s.history.copy_(torch.where(moves.unsqueeze(2), shifted, s.history))
        s.audio.copy_(torch.where(moves, heard, s.audio))
        s.text.copy_(torch.where(advance, token, s.text))
        s.offset.copy_(offset)
        s.asked.copy_(asked)
        s.token.copy_(token)
        s.codes.copy_(codes)
