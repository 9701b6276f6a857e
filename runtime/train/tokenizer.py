"""The voice's text tokenizer: SentencePiece over phonemes, with the special ids of the published models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from runtime.train.network import PIECE_SOUNDS

MARK = "\u2581"


def train_tokenizer(words: list[str], path: Path, size: int) -> Any:
    """A processor over `size` pieces; 0 new word (also unknown), 1 and 2 the speakers, 3 padding."""
    import sentencepiece

    if not path.exists():
        corpus = path.with_suffix(".txt")
        corpus.write_text("\n".join(words))
        # Sounds are letters of several alphabets: split by script, a word would fall into far too many pieces.
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus), model_prefix=str(path.with_suffix("")), vocab_size=size, model_type="bpe",
            unk_id=0, bos_id=1, eos_id=2, pad_id=3, character_coverage=1.0, normalization_rule_name="identity",
            split_by_unicode_script=False, split_by_number=False, max_sentencepiece_length=PIECE_SOUNDS,
            minloglevel=2, num_threads=1,
        )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def piece_sounds(tokenizer: Any, size: int) -> torch.Tensor:
    """[size + 1, PIECE_SOUNDS]: the sounds of each piece as small numbers, 0 after its end."""
    pieces = [tokenizer.id_to_piece(i) if i > 3 else "" for i in range(tokenizer.get_piece_size())]
    number = {c: i + 1 for i, c in enumerate(sorted(set("".join(pieces))))}
    out = torch.zeros(size + 1, PIECE_SOUNDS, dtype=torch.long)
    for i, piece in enumerate(pieces):
        for place, sound in enumerate(piece[:PIECE_SOUNDS]):
            out[i, place] = number[sound]
    return out
