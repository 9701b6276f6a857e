"""Stage 5 of the demo voice: train. Resumable; the state is a function of the seed and the step.

    python -m runtime.train.train --shards WORK/shards --codec WORK/codec.safetensors --out WORK/run --steps 6000

A warm-up, a constant rate, and a last part in which the rate falls to nothing (`--cool FROM:TO` in steps); an
exponential average of the weights is kept beside them and is what is exported. Matrices are trained with
orthogonalised momentum (Muon), tables and gains with Adam. The check of this stage is the loss on held-out streams.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.train.codec_fit import ENTRIES, SLOTS, SlotCodec
from runtime.train.dataset import PAD, RowMaker, Rows, Utterance, load_shard
from runtime.train.device import add_device, draws
from runtime.train.network import Shape, Voice
from runtime.train.tokenizer import piece_sounds, train_tokenizer

COARSE_WEIGHT, FINE_WEIGHT = 1.5, 0.75
FRAME_DROP, CODE_NOISE, DEPTH_SHARE = 0.10, 0.08, 0.5
TEXT_DROP = 0.1  # of the streams hear no text, so that guidance by a second pass is possible


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
ROUNDS = 3  # singular values from 0.03 of the norm upwards come out near one; more rounds cost more than they bring


def orthogonalise(m: Tensor) -> Tensor:
    """Nearly the nearest semi-orthogonal matrices to m [..., R, C]."""
    tall = m.shape[-2] > m.shape[-1]
    x = m.mT if tall else m
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    done: Tensor = x.mT if tall else x
    return done


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised; for matrices [R, C] and stacks of them [K, R, C]."""

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.02) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p)
                state["m"].lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(state["m"], group["momentum"]))
                scale = max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
                p.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-group["lr"] * scale)


def spoil(codes: Tensor, draw: torch.Generator) -> Tensor:
    """Previous codes as a stream with mistakes would have them: some frames missing, some codes wrong."""
    where = codes.device
    wrong = (torch.rand(codes.shape, generator=draw, device=where) < CODE_NOISE) & (codes >= 0) & (codes < ENTRIES)
    codes = torch.where(wrong, torch.randint(ENTRIES, codes.shape, generator=draw, device=where), codes)
    lost = torch.rand(codes.shape[:-1], generator=draw, device=where) < FRAME_DROP
    return torch.where(lost[..., None] & (codes < ENTRIES), -1, codes)


def losses(model: Voice, rows: Rows, draw: torch.Generator | None) -> dict[str, Tensor]:
    """Loss terms of a batch; `draw` spoils the history and samples frames, None measures everything."""
    tables = model.tables()
    text = F.pad(rows.text[:, :-1], (1, 0), value=model.shape.text_card)
    codes = F.pad(rows.codes[:, :-1], (0, 0, 1, 0), value=ENTRIES)
    free = rows.free
    if draw:
        deaf = torch.rand(len(text), 1, generator=draw, device=text.device) < TEXT_DROP
        text = torch.where(deaf & (torch.arange(text.shape[1], device=text.device) > 0), -1, text)
        free = free & ~deaf
    heard = model.temporal(tables, text, spoil(codes, draw) if draw else codes)
    asked = F.linear(heard[free], model.asks)
    target = torch.where(rows.wants[free] > 0, 0, PAD)
    out = {"ask": F.cross_entropy(asked, target)}
    picked = rows.heard.nonzero()
    frames = heard[picked[:, 0], picked[:, 1]]
    says = F.linear(frames, model.says).view(-1, model.shape.sounds)
    out["sound"] = F.cross_entropy(says, rows.spoken[picked[:, 0], picked[:, 1]].flatten())
    out["latent"] = F.mse_loss(F.linear(frames, model.means), rows.latents[picked[:, 0], picked[:, 1]] / 4.0)
    if draw:
        keep = torch.randperm(len(picked), generator=draw, device=picked.device)[: int(len(picked) * DEPTH_SHARE)]
        picked, frames = picked[keep], frames[keep]
    right = rows.codes[picked[:, 0], picked[:, 1]]
    logits = model.depth_logits(tables, frames, rows.text[picked[:, 0], picked[:, 1]], right)
    for q in range(model.shape.books):
        out[f"q{q}"] = F.cross_entropy(logits[q], right[:, q])
    return out


def total(parts: dict[str, Tensor]) -> Tensor:
    coarse = sum(parts[f"q{q}"] for q in range(SLOTS))
    fine = sum(parts[f"q{q}"] for q in range(SLOTS, 2 * SLOTS))
    codes = (COARSE_WEIGHT * coarse + FINE_WEIGHT * fine) / (SLOTS * (COARSE_WEIGHT + FINE_WEIGHT)) * 2
    return codes + 0.5 * parts["ask"] + 0.3 * parts["sound"] + 0.5 * parts["latent"]


class Run:
    """One training run: model, optimisers, average, data; saved and restored as a whole, on any device."""

    def __init__(self, args: argparse.Namespace, shape: Shape, model: Voice, maker: RowMaker) -> None:
        self.args, self.shape, self.model, self.maker = args, shape, model.to(args.device), maker
        self.step, self.cpu_s = 0, 0.0
        matrices = [p for part in (model.layers, model.depth) for p in part.parameters() if p.dim() > 1]
        matrices.append(model.depth_in)
        chosen = {id(p) for p in matrices}
        rest = [p for p in model.parameters() if id(p) not in chosen]
        self.muon = Muon(matrices, lr=args.muon_lr)
        self.adam = torch.optim.AdamW(rest, lr=args.adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.average = {k: v.detach().clone() for k, v in model.state_dict().items()}

    def rate(self) -> float:
        """Share of the full learning rate at this step."""
        first, last = self.args.cool
        warm = min(1.0, (self.step + 1) / self.args.warmup)
        return float(warm * min(1.0, max(0.0, (last - self.step) / max(1, last - first))))

    def advance(self) -> dict[str, Tensor]:
        """The next step, on the next batch."""
        device = self.args.device
        return self.learn(self.maker.batch(self.args.batch).to(device), draws(self.seed_of_step(), device))

    def seed_of_step(self) -> int:
        return int(self.args.seed * 1_000_003 + self.step)

    def learn(self, rows: Rows, draw: torch.Generator) -> dict[str, Tensor]:
        """One step on these rows, all of it where they lie; the loss terms before it."""
        parts = losses(self.model, rows, draw)
        loss = total(parts)
        self.muon.zero_grad(set_to_none=True)
        self.adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        rate = self.rate()
        for group in self.muon.param_groups:
            group["lr"] = self.args.muon_lr * rate
        for group in self.adam.param_groups:
            group["lr"] = self.args.adam_lr * rate
        self.muon.step()
        self.adam.step()
        self.step += 1
        keep = min(0.998, 1 - 1 / (1 + self.step / 5))
        live = list(self.model.state_dict().values())
        torch._foreach_lerp_(list(self.average.values()), live, 1 - keep)
        return {k: v.detach() for k, v in parts.items()}

    def save(self, path: Path) -> None:
        state = {"model": self.model.state_dict(), "average": self.average, "muon": self.muon.state_dict(),
                 "adam": self.adam.state_dict(), "step": self.step, "cpu_s": self.cpu_s, "shape": self.shape.to_json(),
                 "rows": self.maker.draw.bit_generator.state}
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.rename(path)

    def restore(self, path: Path) -> None:
        """Goes on from a saved state, which may have been written on another kind of device."""
        state = torch.load(path, weights_only=False, map_location=self.args.device)
        self.model.load_state_dict(state["model"])
        self.average = state["average"]
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        self.step, self.cpu_s = state["step"], state["cpu_s"]
        self.maker.draw.bit_generator.state = state["rows"]


def measure(run: Run, rows: Rows) -> dict[str, float]:
    """Losses of the averaged weights on held-out rows."""
    live = {k: v.clone() for k, v in run.model.state_dict().items()}
    run.model.load_state_dict(run.average)
    with torch.no_grad():
        out = {k: round(float(v), 3) for k, v in losses(run.model, rows, None).items()}
    run.model.load_state_dict(live)
    return out


def load_utterances(folder: Path, codec: SlotCodec, tokenizer: Any) -> list[Utterance]:
    return [u for path in sorted(folder.glob("shard??.npz")) for u in load_shard(path, codec, tokenizer)]


def words_of(path: Path) -> list[str]:
    import numpy as np

    return [word for u in json.loads(str(np.load(path)["meta"])) for word, _ in u["words"]]


def loop(run: Run, held: Rows) -> None:
    args, began, spent = run.args, time.process_time(), run.cpu_s
    mean: dict[str, Tensor] = {}
    saved = time.monotonic()
    while run.step < args.steps and not (args.out / "stop").exists():
        parts = run.advance()
        run.cpu_s = spent + time.process_time() - began
        mean = {k: v if k not in mean else mean[k].lerp(v, 0.03) for k, v in parts.items()}
        if not math.isfinite(float(parts["q0"])):
            raise SystemExit(f"the loss is not finite at step {run.step}")
        if run.step % 50 == 0:
            shown = {k: round(float(v), 3) for k, v in mean.items()}
            line = {"step": run.step, "cpu_s": round(run.cpu_s), "rate": round(run.rate(), 3), **shown}
            print(json.dumps(line), flush=True)
        if run.step % args.measure_every == 0:
            print(json.dumps({"held_out": run.step, **measure(run, held)}), flush=True)
        if time.monotonic() - saved > 120:
            run.save(args.out / "state.pt")
            saved = time.monotonic()
    run.save(args.out / "state.pt")
    print(json.dumps({"held_out": run.step, **measure(run, held)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("shards", "codec", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--cool", type=lambda s: tuple(int(x) for x in s.split(":")), default=(4500, 6000))
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--row-steps", type=int, default=256)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--measure-every", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text-card", type=int, default=Shape().text_card)
    add_device(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    shape = Shape(text_card=args.text_card)
    codec = SlotCodec(args.codec, args.device)
    tokenizer = train_tokenizer(words_of(args.shards / "shard00.npz"), args.out / "tokenizer.model", args.text_card)
    model = Voice(shape, codec.books.cpu(), piece_sounds(tokenizer, args.text_card))
    utterances = load_utterances(args.shards, codec, tokenizer)
    run = Run(args, shape, model, RowMaker(utterances, shape.delay, args.row_steps, args.seed))
    kept = RowMaker(load_shard(args.shards / "held_out.npz", codec, tokenizer), shape.delay, args.row_steps, 0)
    held = kept.batch(6).to(args.device)
    if (args.out / "state.pt").exists():
        run.restore(args.out / "state.pt")
    frames = sum(len(u.codes) for u in utterances)
    millions = round(sum(p.numel() for p in model.parameters()) / 1e6, 2)
    line = {"device": str(args.device), "parameters_m": millions, "utterances": len(utterances), "frames": frames,
            "step": run.step}
    print(json.dumps(line), flush=True)
    loop(run, held)


if __name__ == "__main__":
    main()
