"""Which text token the model is given at each step: pure integers, one owner per stream. No torch, no time.

The model does not read text at its own pace: it signals when it is ready for the next word, and this machine then hands
it the word's tokens one a step, with the word `lookahead` places further on in a second stream. Only one bit of the
model's choice matters (next word or not), so `peek` gives the token for both answers before the step and `commit` takes
the answer after it: the choice itself is made on the device, without a round trip in the middle of a frame.

The rules are those of the reference (moshi, models/tts.py, StateMachine), with one difference that its own server makes
too: a pause does not count as a word of look-ahead. Text that arrives in pieces then gives the same tokens as text that
was there from the start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.port import Entry

NEW_WORD = 0  # the next word begins
PAD = 3  # nothing happens
MAIN = 1  # the first speaker's turn begins; comes before the first token of the turn's first word
OTHER = 2  # the second speaker's
ZERO = -1  # no token at all: embedded as zeros


@dataclass(frozen=True, slots=True)
class FeedRules:
    """The numbers of one model and one stream, all in steps or words."""

    card: int  # token values of one text stream, the initial one included
    lookahead: int = 2  # which word ahead goes to the second stream; 0: there is no second stream
    patience: int = 2  # words that must wait besides the next one, at most `lookahead`
    max_padding: int = 8
    initial_padding: int = 2
    tail_steps: int = 20  # padding that brings out the sound of the last word after a flush
    prefix_steps: int = 0  # steps of a voice prompt before the text: the text stream is empty there


@dataclass(frozen=True, slots=True)
class Placed:
    """A word and its steps; stop is None while it is still being spoken."""

    text: str
    start: int
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """What a step came to: the token that was fed, and the words that began or ended with it."""

    token: int
    started: tuple[Placed, ...] = ()
    finished: tuple[Placed, ...] = ()


class WordFeed:
    """The state of one stream. peek and commit alternate, and only while `ready`."""

    def __init__(self, rules: FeedRules) -> None:
        self._rules = rules
        self._entries: deque[Entry] = deque()
        self._words = 0  # entries with tokens among them
        self._queued: deque[int] = deque()
        self._ahead: deque[int] = deque()
        self._remaining = rules.initial_padding
        self._forced = rules.initial_padding
        self._flushed = 0  # entries that may go without look-ahead
        self._flushing = False  # the word being spoken was flushed: its end and its sound must come out
        self._until = 0  # steps before this one are made even with nothing to say
        self._open: Placed | None = None
        self._ended = False
        self._spoke = False
        self.step = 0
        self.end_step: int | None = None

    # Text in

    def push(self, entries: Sequence[Entry]) -> None:
        self._entries.extend(entries)
        self._words += sum(1 for entry in entries if entry.tokens)
        self._spoke = self._spoke or bool(self._words)

    def flush(self) -> None:
        """Whatever is here need not wait for what is not; the sound of the last word is brought out."""
        self._flushed = len(self._entries)
        self._flushing = self._open is not None

    def end(self) -> None:
        self._ended = True

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def silent(self) -> bool:
        """Ended without a single word: there is nothing to say, and no step need be made."""
        return self._ended and not self._spoke

    @property
    def waiting(self) -> int:
        """Entries not yet taken up."""
        return len(self._entries)

    # One step

    @property
    def ready(self) -> bool:
        """Whether a step may be made: its outcome cannot depend on text that is still to come."""
        if self.step < max(self._rules.prefix_steps, self._until) or self._flushing:
            return True
        return bool(self._queued) or self._forced > 0 or self._available()

    def peek(self) -> tuple[int, int]:
        """The token to feed if the model does not ask for a word, and if it does."""
        if self.step < self._rules.prefix_steps:
            return ZERO, ZERO
        pad = self._mux(self._queued[0] if self._queued else PAD, self._ahead[0] if self._ahead else ZERO)
        word = pad if self._forbidden() else self._word_token(pad)
        return (word if self._due() else pad), word

    def commit(self, wants_word: bool) -> Commit:
        """Takes the model's answer for the step that was peeked, and moves on to the next one."""
        step, self.step = self.step, self.step + 1
        if step < self._rules.prefix_steps:
            return Commit(ZERO)
        finished: tuple[Placed, ...] = ()
        started: tuple[Placed, ...] = ()
        word = not self._forbidden() and (wants_word or self._due())
        if self._draining() and (wants_word or self._remaining <= 0):
            finished = self._finish(step)
        if word:
            finished = self._finish(step)
            word, started = self._take(step)
        return Commit(self._emit(word), started, finished)

    def _available(self) -> bool:
        """Whether the next word, pause or end may be taken up: what follows it is known as far as it is looked at."""
        if self._ended:
            return True
        if not self._entries:
            return False
        return self._flushed > 0 or not self._entries[0].tokens or self._words > self._rules.patience

    def _draining(self) -> bool:
        """Nothing may be taken up, yet steps are made: what was said is on its way out."""
        return not self._queued and self._forced <= 0 and not self._available()

    def _forbidden(self) -> bool:
        """No word now: the last one is still being fed, a pause is kept, or there is none and more may come."""
        return bool(self._queued) or self._forced > 0 or self._draining()

    def _due(self) -> bool:
        """A word now, whatever the model says: it has paused as long as it may."""
        return self._remaining <= 0 and not self._forbidden()

    def _mux(self, first: int, second: int) -> int:
        return (second + 1) * self._rules.card + first if self._rules.lookahead else first

    def _word_token(self, pad: int) -> int:
        """What `commit(True)` would feed; the queue is empty here."""
        if self._entries and not self._entries[0].tokens:
            return pad
        if not self._entries and not (self._rules.lookahead and self.end_step is None):
            return pad
        if not self._rules.lookahead:
            return NEW_WORD
        return self._mux(self._entries[0].tokens[0] if self._entries else PAD, NEW_WORD)

    def _take(self, step: int) -> tuple[bool, tuple[Placed, ...]]:
        """Takes the next entry up. Returns whether the new-word token is fed, and the word that began."""
        if not self._entries:
            first_time = self.end_step is None
            if first_time:
                self.end_step = step
            return first_time and bool(self._rules.lookahead), ()
        entry = self._entries.popleft()
        self._flushing = self._flushed > 0 and bool(entry.tokens)
        self._flushed = max(0, self._flushed - 1)
        self._forced = entry.padding
        if not entry.tokens:
            return False, ()
        self._words -= 1
        self._queued.extend(entry.tokens)
        if self._rules.lookahead:
            self._ahead.extend(self._tokens_ahead())
        self._remaining = self._rules.max_padding
        self._open = Placed(entry.text, step)
        return True, (self._open,)

    def _tokens_ahead(self) -> tuple[int, ...]:
        left = self._rules.lookahead
        for entry in self._entries:
            left -= bool(entry.tokens)
            if left == 0:
                return entry.tokens
        return ()

    def _emit(self, word: bool) -> int:
        if word and self._rules.lookahead:
            return self._mux(self._queued.popleft() if self._queued else PAD, NEW_WORD)
        if word:
            return NEW_WORD
        self._remaining = max(0, self._remaining - 1)
        self._forced = max(0, self._forced - 1)
        first = self._queued.popleft() if self._queued else PAD
        return self._mux(first, self._ahead.popleft() if self._ahead else ZERO)

    def _finish(self, step: int) -> tuple[Placed, ...]:
        """The word being spoken ends here, if there is one."""
        if self._open is None:
            return ()
        if self._flushing:
            self._flushing, self._until = False, step + self._rules.tail_steps
        done, self._open = replace(self._open, stop=step), None
        return (done,)
