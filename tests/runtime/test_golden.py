"""The reference's own words: text tokens, codes, word times and sound equal to vectors that the public package made.

tests/golden/make_golden.py writes the vectors; the tests marked `oracle` make them anew and compare.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from runtime import checkpoint
from runtime.audio import encoder
from runtime.cloning import clip_prompts
from runtime.engine import Prompts, SpeechEngine
from runtime.graphs import EagerStep
from runtime.make_checkpoint import make
from runtime.port import LaneState
from tests.golden.cases import CASES, SEED, SOUND_FRAMES, Case

VECTORS = Path(__file__).resolve().parent.parent / "golden"
SOUND_TOLERANCE = 1e-4  # of the loudest sample: the random decoder's sound reaches 20
Home = Callable[[str], Path]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Directories of the checkpoints that the vectors were made with."""
    root = tmp_path_factory.mktemp("golden")

    def checkpoint_of(size: str) -> Path:
        if not (root / size).exists():
            make(root / size, size, seed=SEED)
        return root / size

    return checkpoint_of


def spoken(case: Case, directory: Path, *, lanes: int = 1, prompts: Prompts | None = None) -> dict[str, object]:
    """What our engine says to a case: the same things as a vector holds. `prompts` instead of the case's own."""
    torch.set_num_threads(1)
    loaded = checkpoint.load(directory, codebooks=case.codebooks)
    tokens: list[int] = []
    codes: list[np.ndarray] = []

    def trace(lane: int, step: int, token: int, spoken_codes: np.ndarray) -> None:
        tokens.append(token)
        codes.append(spoken_codes)

    prompt = case.prompt(loaded.model.depth.codebooks, loaded.config.card)
    if prompts is None and prompt is not None:
        prompts = cast(Prompts, lambda _: prompt)
    engine = SpeechEngine(
        loaded.model, loaded.codec, loaded.voices, loaded.make_feed, EagerStep, lanes=lanes, trace=trace,
        prompts=prompts,
    )  # fmt: skip
    lane = engine.open(case.spec)
    engine.feed(lane, case.entries(loaded.encode))
    engine.end(lane)
    words, pcm = [], []
    while engine.state(lane) is not LaneState.ENDED and len(tokens) < case.steps:
        for out in engine.step([lane], lead=engine.state(lane) is LaneState.LEAD):
            words += [[w.text, round(w.start_s * 12.5) + case.prompt_frames] for w in out.started]
            pcm += [] if out.pcm is None else [out.pcm]
    delays = loaded.config.delays.codebook_delays
    frames = len(codes) - loaded.config.delays.max_delay
    undelayed = np.stack([[codes[t + delays[q]][q] for t in range(frames)] for q in range(len(codes[0]))])
    return {"text_tokens": tokens, "codes": undelayed, "words": words, "pcm": np.concatenate(pcm)}


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_tokens_codes_words_and_sound_are_the_references(case: Case, home: Home) -> None:
    vector = np.load(VECTORS / f"{case.name}.npz")
    facts = json.loads(vector["facts"].tobytes())
    directory = home(case.size)
    assert [[list(e.tokens), e.text, e.padding] for e in case.entries(checkpoint.load(directory).encode)] == facts[
        "entries"
    ], "this torch or sentencepiece makes another random checkpoint: run tests/golden/make_golden.py"
    ours = spoken(case, directory)
    assert ours["text_tokens"] == vector["text_tokens"].tolist()
    assert ours["words"] == facts["words"]
    codes = ours["codes"]
    assert isinstance(codes, np.ndarray) and np.array_equal(codes, vector["codes"])
    if case.name in ("greedy", "drawn"):
        assert codes.shape[1] >= 500
    sound, pcm = vector["pcm"], ours["pcm"]
    assert isinstance(pcm, np.ndarray)
    skipped = SOUND_FRAMES[0] - case.prompt_frames
    if skipped >= 0:  # the sound of a prompt is not ours to give
        mine = pcm[skipped * 1920 :][: sound.size]
        assert np.abs(mine - sound).max() <= SOUND_TOLERANCE * np.abs(sound).max()


@pytest.mark.parametrize("case", CASES[2:], ids=[case.name for case in CASES[2:]])
def test_a_model_of_wide_matrices_alone_says_the_same(case: Case, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the form that the published models' matrices have, which no small matrix has by itself."""
    monkeypatch.setattr("runtime.model.matrices.PACKED_MIN", 0)
    vector, ours = np.load(VECTORS / f"{case.name}.npz"), spoken(case, home(case.size))
    assert ours["text_tokens"] == vector["text_tokens"].tolist()
    assert np.array_equal(cast(np.ndarray, ours["codes"]), vector["codes"])


@pytest.mark.oracle
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_vectors_are_what_the_installed_reference_says(case: Case, home: Home) -> None:
    if importlib.util.find_spec("moshi") is None:
        pytest.skip("the public package moshi==0.2.13 is not installed")
    from tests.golden.make_golden import vector

    kept, fresh = np.load(VECTORS / f"{case.name}.npz"), vector(case, home(case.size))
    for name in ("text_tokens", "codes", "facts"):
        assert np.array_equal(kept[name], fresh[name])


@pytest.mark.oracle
@pytest.mark.parametrize("size", ["small", "small-prompted"])
def test_every_step_is_the_references_and_a_run_that_differs_is_told_apart(size: str, home: Home) -> None:
    """What `python -m tests.golden.compare` does at full size: also each step's logits within 1e-4."""
    if importlib.util.find_spec("moshi") is None:
        pytest.skip("the public package moshi==0.2.13 is not installed")
    from tests.golden import compare

    cases = [compare.case_of(home(size), 40, temp=temp, seed=17) for temp in (0.0, 0.6)]
    loaded = checkpoint.load(home(size))
    for case, heard in zip(cases, compare.reference(home(size), cases, "float32", sound=True), strict=True):
        said = compare.ours(loaded, case)
        assert len(heard.words) >= 3 and heard.pcm.any()
        assert compare.verdict(said, heard, 16)["equal"]
        late = [(word, step + 1) for word, step in heard.words]
        for part, differs in (
            ("word_times", replace(heard, words=late)),
            ("codes", replace(heard, codes=heard.codes[:, ::-1])),
            ("text", replace(heard, text_tokens=heard.text_tokens[1:])),
            ("pcm", replace(heard, pcm=heard.pcm * 1.001)),
            ("logits", replace(heard, text_logits=[logits * 1.001 for logits in heard.text_logits])),
        ):
            found = compare.verdict(said, differs, 16)
            assert not found["equal"] and not found[f"{part}_equal"], part


@pytest.mark.oracle
@pytest.mark.parametrize("size", ["small", "small-prompted"])
def test_bfloat16_is_as_near_to_float32_as_the_references_own(size: str) -> None:
    """One checkpoint scatters by 2 to 14 %: the mean over several may lie above 1 by no more than chance allows."""
    if importlib.util.find_spec("moshi") is None:
        pytest.skip("the public package moshi==0.2.13 is not installed")
    from tests.golden.rounding import distances, fresh

    for part, found in distances(fresh(size, range(8))).items():
        assert found["vectors"] >= (100 if part == "text" else 30), found
        assert found["ratio_error"] < 0.1 and found["ratio"] <= 1 + 2 * found["ratio_error"], (part, found)


@pytest.mark.oracle
def test_a_voice_from_a_clip_is_the_references_from_the_file_to_the_last_code(tmp_path: Path) -> None:
    """End to end: a WAV file beside the checkpoint, encoded, continued and spoken on by both."""
    if importlib.util.find_spec("moshi") is None:
        pytest.skip("the public package moshi==0.2.13 is not installed")
    from tests.golden import oracle

    config = make(tmp_path, "small-prompted", seed=SEED)
    draws = np.random.default_rng(3)
    enc = encoder("wav")
    clip = (draws.standard_normal(36_000) * 0.1).astype(np.float32)
    (tmp_path / "anna.wav").write_bytes(enc.encode(clip) + enc.finish())
    case = next(case for case in CASES if case.name == "prompted")
    model = oracle.load(tmp_path)
    prefix = model.get_prefix(tmp_path / "anna.wav")[1:].t().numpy()
    loaded = checkpoint.load(tmp_path)
    prompts = clip_prompts(loaded.codec, loaded.voices, by_embedding=False)
    assert prompts is not None
    codes = prompts(loaded.voices.check(("anna.wav",))[0])
    assert codes is not None and codes.shape == (17, config.n_q) and np.array_equal(codes, prefix)
    heard = oracle.listen(
        model, case.entries(loaded.encode), cfg=case.spec.cfg, steps_max=120, prompt=prefix, sound=False
    )
    said = spoken(replace(case, steps=120, prompt_frames=17), tmp_path, prompts=prompts)
    assert said["text_tokens"] == heard.text_tokens
    assert isinstance(said["codes"], np.ndarray) and np.array_equal(said["codes"], heard.codes)
