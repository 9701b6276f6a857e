"""When a step makes sound and what time it is: the model's delays as integers. It owns no state; no torch.

The text runs ahead of the sound by `delay_steps`, so that the model has read a word before it speaks it, and codebook q
trails the first one by `codebook_delays[q]` steps, so that fine codes see coarse ones. Both were fixed in training.

What may be tuned and what it costs, per stream of text arriving word by word:
- `lookahead` (words waiting besides the next one; trained with 2): each word less lets the sound start one word
  earlier. The second text stream then carries nothing for the missing word, which the model met in training only at
  the end of its text, so the melody of long sentences suffers first.
- `initial_padding` (steps before the first word; 2): each step less saves 80 ms of silence; 0 may clip an onset.
- fewer codebooks shorten a whole step in proportion to the depth pass; the delays stay as they are.
Neither delay_steps nor the codebook delays can be tuned: other values are another model.
"""

from __future__ import annotations

from dataclasses import dataclass

FRAME_RATE = 12.5  # steps per second, of text and of sound
FRAME_S = 1.0 / FRAME_RATE


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays of one model, in steps."""

    delay_steps: int
    codebook_delays: tuple[int, ...]  # [K], of the codebooks in use

    @property
    def max_delay(self) -> int:
        return max(self.codebook_delays, default=0)

    @property
    def first_frame_step(self) -> int:
        """Index of the first step after which a whole frame of codes exists."""
        return self.delay_steps + self.max_delay

    def is_lead(self, step: int) -> bool:
        """Whether this step's codes are all known without the depth transformer: there are none yet."""
        return step < self.delay_steps

    def steps_in_all(self, end_step: int, final_padding: int) -> int:
        """How many steps a stream takes whose last word ended at `end_step`: its sound, and `final_padding` more.

        The last max_delay of the padding steps complete the codes of frames before them; they add no sound of their
        own, hence final_padding must be at least max_delay for the last word to be whole.
        """
        return end_step + self.delay_steps + final_padding

    def tail_steps(self, final_padding: int) -> int:
        """Steps of padding that bring out the sound of a word whose place is known now."""
        return self.delay_steps + final_padding


def steps_of(seconds: float) -> int:
    """A duration in whole steps. 1.28 s is 16: what is within a millionth of a step counts as that step."""
    exact = seconds * FRAME_RATE
    nearest = round(exact)
    return nearest if abs(exact - nearest) < 1e-6 else int(exact)
