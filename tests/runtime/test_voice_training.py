"""The demo voice's training: what it learns is what is served, and a run can be stopped anywhere."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.fx.experimental._config
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from runtime import checkpoint, weights
from runtime.config import ModelSettings
from runtime.phonemes import Phonemizer
from runtime.port import Entry, StreamSpec
from runtime.say import speak
from runtime.train import codec_fit, export, lexicon
from runtime.train.codec_fit import ENTRIES, SlotCodec
from runtime.train.dataset import PAD, RowMaker, feed, load_shard
from runtime.train.device import draws
from runtime.train.network import Shape, Voice
from runtime.train.sentences import prose
from runtime.train.spectra import WIDTH
from runtime.train.tokenizer import piece_sounds, train_tokenizer
from runtime.train.train import Run, losses, orthogonalise
from runtime.wordfeed import FeedRules, WordFeed

CPU, META = torch.device("cpu"), torch.device("meta")
WORDS = ["hə", "lO", "ðə", "kæt", "sæt", "həlO", "kætsæt", "lOðə,", "sæt."]
SHAPE = Shape(text_card=30, dim=32, heads=2, layers=2, hidden=32, depth_dim=16, depth_heads=2, depth_hidden=16,
              context=20, delay=3)  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with a tiny shard, a codec fitted on it and a tokenizer."""
    folder = tmp_path_factory.mktemp("voice")
    draw = np.random.default_rng(0)
    rows: list[NDArray[np.float32]] = []
    meta = []
    for i in range(8):
        count = 8 * int(draw.integers(18, 26)) + i
        rows.append(draw.standard_normal((count, WIDTH)).astype(np.float32).cumsum(0) * 0.1)
        starts = np.sort(draw.uniform(0.1, count / 100 - 0.1, 3))
        said = [(WORDS[int(draw.integers(len(WORDS)))], float(start)) for start in starts]
        meta.append({"text": "x", "rows": count, "phonemes": "", "words": said})
    spoken = np.zeros(sum(len(r) for r in rows), np.uint8)
    np.savez(folder / "shard00.npz", rows=np.concatenate(rows), spoken=spoken, meta=np.array(json.dumps(meta)))
    tensors, left = codec_fit.fit(rows, 0)
    assert left[1] < left[0] < 1
    weights.write(folder / "codec.safetensors", tensors)
    train_tokenizer(WORDS * 5, folder / "tokenizer.model", SHAPE.text_card)
    lexicon.write(folder / "lexicon.tsv.gz", {"hello": "həlO", "cat": "kæt", "sat": "sæt"}, {"A": "æ"})
    return folder


def make_run(work: Path, out: Path, device: torch.device = CPU) -> Run:
    torch.manual_seed(0)
    codec = SlotCodec(work / "codec.safetensors")
    tokenizer = train_tokenizer([], work / "tokenizer.model", SHAPE.text_card)
    model = Voice(SHAPE, codec.books, piece_sounds(tokenizer, SHAPE.text_card))
    said = load_shard(work / "shard00.npz", codec, tokenizer)
    args = argparse.Namespace(muon_lr=0.02, adam_lr=3e-3, warmup=2, cool=(50, 60), batch=2, seed=1, out=out,
                              device=device)  # fmt: skip
    return Run(args, SHAPE, model, RowMaker(said, SHAPE.delay, 40, 1))


def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(work: Path, tmp_path: Path) -> None:
    straight = make_run(work, tmp_path)
    for _ in range(4):
        straight.advance()
    first = make_run(work, tmp_path)
    first.advance()
    first.advance()
    first.save(tmp_path / "state.pt")
    second = make_run(work, tmp_path)
    second.restore(tmp_path / "state.pt")
    second.advance()
    second.advance()
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    assert all(torch.equal(v, second.average[k]) for k, v in straight.average.items())


class OnlyOn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails an operation whose result lies on another device. Single numbers, such as Adam's count of steps, may."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.operations = device, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.dim():
                assert tensor.device.type == self.device.type, f"{func} gives a tensor on {tensor.device}"
                self.operations += 1
        return result


def test_a_training_step_makes_every_tensor_on_the_device_it_was_given(work: Path, tmp_path: Path) -> None:
    """The meta device has shapes and no values: it stands for a GPU, and a tensor left on the CPU fails beside it."""
    run = make_run(work, tmp_path, META)
    for group in run.adam.param_groups:
        group["fused"] = False  # the one thing that CPU and CUDA have and this device has not
    rows = run.maker.batch(2).to(META)
    with torch.fx.experimental._config.patch(meta_nonzero_assume_all_nonzero=True), OnlyOn(META) as watched:
        parts = run.learn(rows, draws(1, CPU))
    assert watched.operations > 1000
    assert {t.device.type for t in (*parts.values(), *run.average.values(), *run.model.buffers())} == {"meta"}
    assert {t.device.type for state in run.muon.state.values() for t in state.values()} == {"meta"}


def test_the_watch_notices_a_tensor_on_the_wrong_device() -> None:
    with pytest.raises(AssertionError, match="on cpu"), OnlyOn(META):
        torch.zeros(3)


def test_a_state_is_restored_onto_the_device_of_the_run(work: Path, tmp_path: Path) -> None:
    """Saved on one device, restored for another: nothing may stay where it was."""
    first = make_run(work, tmp_path)
    first.advance()
    first.save(tmp_path / "state.pt")
    second = make_run(work, tmp_path, META)
    second.restore(tmp_path / "state.pt")
    states = [state for optimiser in (second.muon, second.adam) for state in optimiser.state.values()]
    assert {t.device.type for t in second.average.values()} == {"meta"}
    assert {t.device.type for state in states for t in state.values() if t.dim()} == {"meta"}
    assert second.step == 1


def test_the_script_trains_on_the_device_that_is_named_and_goes_on_from_there(work: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    for name in ("shard00.npz", "held_out.npz"):
        (shards / name).write_bytes((work / "shard00.npz").read_bytes())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tokenizer.model").write_bytes((work / "tokenizer.model").read_bytes())
    command = ["--shards", shards, "--codec", work / "codec.safetensors", "--out", tmp_path / "run", "--batch", "1",
               "--row-steps", "40", "--text-card", str(SHAPE.text_card), "--device", "cpu"]  # fmt: skip
    first, second = script("train", *command, "--steps", "1"), script("train", *command, "--steps", "2")
    assert [json.loads(run.stdout.splitlines()[0])["step"] for run in (first, second)] == [0, 1]
    assert json.loads(second.stdout.splitlines()[0])["device"] == "cpu"
    assert json.loads(second.stdout.splitlines()[-1])["held_out"] == 2


def script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"runtime.train.{name}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("name", ["train", "codec_fit", "evaluate"])
def test_a_script_without_the_named_device_says_so_in_one_line(name: str) -> None:
    ended = script(name, "--device", "cuda")
    assert ended.returncode == 2
    assert "--device: cuda: this machine has no CUDA device that PyTorch can use" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_steps_lower_the_loss(work: Path, tmp_path: Path) -> None:
    run = make_run(work, tmp_path)
    rows = run.maker.batch(2)
    with torch.no_grad():
        before = losses(run.model, rows, None)
    for _ in range(20):
        run.advance()
    with torch.no_grad():
        after = losses(run.model, rows, None)
    assert float(after["ask"]) < float(before["ask"])
    assert float(after["q0"]) < float(before["q0"])


def test_what_is_served_is_what_was_trained(work: Path, tmp_path: Path) -> None:
    """The engine's greedy tokens are the twin's own choices, given the same past, at every step."""
    run = make_run(work, tmp_path)
    for _ in range(3):
        run.advance()
    run.save(tmp_path / "state.pt")
    (tmp_path / "tokenizer.model").write_bytes((work / "tokenizer.model").read_bytes())
    codec = SlotCodec(work / "codec.safetensors")
    model, _ = export.restore(tmp_path, codec, averaged=False)
    out = tmp_path / "voice"
    export.write(out, model, codec_path=work / "codec.safetensors", lexicon=work / "lexicon.tsv.gz",
                 tokenizer=work / "tokenizer.model", step=3, dtype=torch.float32)  # fmt: skip
    steps: list[tuple[int, NDArray[np.int64]]] = []
    engine = checkpoint.start(ModelSettings(model=out), lambda lane, step, token, codes: steps.append((token, codes)))
    frames = list(speak(engine, StreamSpec(temp=0, text_temp=0), iter(["hello cat sat hello cat"])))
    assert len(frames) == len(steps) > 15
    text = torch.tensor([token for token, _ in steps])
    codes = torch.from_numpy(np.stack([c for _, c in steps]))
    with torch.no_grad():
        tables = model.tables()
        before = F.pad(codes[:-1], (0, 0, 1, 0), value=ENTRIES)
        heard = model.temporal(tables, F.pad(text[:-1], (1, 0), value=SHAPE.text_card)[None], before[None])[0]
        logits = model.depth_logits(tables, heard[SHAPE.delay :], text[SHAPE.delay :], codes[SHAPE.delay :])
    assert (codes[: SHAPE.delay] == -1).all()
    best = logits.max(-1).values
    chosen = logits.gather(2, codes[SHAPE.delay :].T[..., None])[..., 0]
    assert float((best - chosen).max()) < 1e-3


@pytest.mark.parametrize("seed", range(20))
def test_training_rows_are_fed_as_the_engine_feeds(seed: int) -> None:
    draw = random.Random(seed)
    words = [[draw.randrange(4, 30) for _ in range(draw.randrange(1, 5))] for _ in range(draw.randrange(1, 9))]
    onsets = sorted(draw.randrange(0, 60) for _ in words)
    tokens, wants, free = feed(words, onsets, 62, 100)
    machine = WordFeed(FeedRules(card=31, lookahead=0, patience=0))
    machine.push([Entry(tuple(w), "w", len(w)) for w in words])
    machine.end()
    for step in range(100):
        without, with_word = machine.peek()
        # Where the head decides, its answer matters; where it does not, either answer gives the same token.
        assert free[step] or machine.end_step is not None or without == with_word
        assert machine.commit(bool(wants[step])).token == tokens[step]


def test_orthogonalised_momentum_has_no_preferred_direction() -> None:
    draw = torch.Generator().manual_seed(0)
    stretched = torch.randn(3, 24, 12, generator=draw) @ torch.diag(torch.linspace(1, 4, 12))
    values = torch.linalg.svdvals(orthogonalise(stretched))
    assert float(values.max() / values.min()) < 2.5
    assert 0.5 < float(values.mean()) < 1.5


def test_rules_learn_the_spelling_they_are_shown() -> None:
    pairs = [(w, lexicon.symbols(s)) for w, s in (
        ("cat", "kˈæt"), ("city", "sˈɪti"), ("cot", "kˈɑt"), ("cite", "sˈIt"), ("tack", "tˈæk"), ("ice", "ˈIs"),
    ) for _ in range(4)]  # fmt: skip
    rules = lexicon.learn_rules(pairs, lexicon.learn_costs(pairs, 4))
    assert Phonemizer({}, rules).word("cat") == "kˈæt"
    assert Phonemizer({}, rules).word("city") == "sˈɪti"


def test_only_plain_sentences_are_read() -> None:
    text = "A plain sentence is kept here. See foo.bar(baz) for more.\n\nReturn the LENGTH_HINT of it. Nor this one"
    assert list(prose(text)) == ["A plain sentence is kept here."]


def test_pads_and_words_have_the_published_ids(work: Path) -> None:
    tokenizer = train_tokenizer([], work / "tokenizer.model", SHAPE.text_card)
    assert tokenizer.pad_id() == PAD
    assert tokenizer.unk_id() == 0
    assert min(tokenizer.encode("həlO kæt")) > PAD
