"""Trains the model on the endless stream of `data.py`; stops and resumes at any checkpoint.

In: options (see `Options`). Out, in the run folder: `checkpoint.pt` (weights, optimizer states and
the position in the data, replaced atomically) and `loss.jsonl` (one line per report). The same
seed on the same number of threads repeats a run; a run that was resumed continues at the data
part after the last one it used.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.data import Sample, stream
from models.model import Model, Shape

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Options:
    """Settings of a training run; each field is a flag."""

    folder: str = "train"
    """Run folder for checkpoints and the loss log."""
    steps: int = 6500
    """Optimizer steps in all; a resumed run counts from where it stopped."""
    decay: int = 2200
    """Steps at the end in which the learning rate falls to zero."""
    warmup: int = 60
    """Steps at the start in which the learning rate rises."""
    lr: float = 4e-3
    """Peak learning rate."""
    optimizer: str = "muon"
    """`muon` for the matrices inside the blocks (AdamW for the rest), or `adamw` for all."""
    micro_tokens: int = 2048
    """Padded tokens in one forward pass."""
    accumulate: int = 2
    """Forward passes in one optimizer step."""
    pool: int = 1024
    """Samples that are sorted by length together; one pool is one part of the data."""
    seed: int = 0
    threads: int = 2
    checkpoint_seconds: float = 120.0
    report: int = 20
    """Steps between two lines of the loss log."""


def batches(options: Options, part: int) -> list[tuple[Tensor, Tensor]]:
    """One pool as padded batches of ids (B, T) and targets (B, T), -100 where nothing is learnt."""
    samples = stream(options.seed, part)
    pool = sorted((next(samples) for _ in range(options.pool)), key=lambda s: len(s.ids))
    groups: list[list[Sample]] = [[]]
    for sample in pool:
        # The pool is sorted, so the newest sample is the longest of its batch.
        if (len(groups[-1]) + 1) * len(sample.ids) > options.micro_tokens:
            groups.append([])
        groups[-1].append(sample)
    return [padded(group) for group in groups]


def padded(samples: list[Sample]) -> tuple[Tensor, Tensor]:
    """Ids and next-token targets of samples, padded at the right to a multiple of 16."""
    longest = max(len(s.ids) for s in samples) - 1
    width = -(-longest // 16) * 16
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    targets = torch.full((len(samples), width), -100)
    for row, sample in enumerate(samples):
        n = len(sample.ids) - 1
        whole = torch.from_numpy(sample.ids.astype(np.int64))
        ids[row, :n] = whole[:-1]
        targets[row, :n] = torch.where(torch.from_numpy(sample.learnt[1:]), whole[1:], -100)
    return ids, targets


def shuffled_batches(options: Options, part: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Endless batches from `part` on, each with the number of its part."""
    while True:
        pool = batches(options, part)
        for i in np.random.default_rng([options.seed, part]).permutation(len(pool)):
            yield part, *pool[int(i)]
        part += 1


def make_optimizers(model: Model, options: Options) -> list[torch.optim.Optimizer]:
    """The optimizers, both at the peak learning rate."""
    inside = [p for p in model.blocks.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if not any(p is q for q in inside)]
    adam = {"lr": options.lr, "betas": (0.9, 0.98), "weight_decay": 0.01}
    if options.optimizer == "adamw":
        return [torch.optim.AdamW([*inside, *rest], **adam)]
    muon = torch.optim.Muon(
        inside, lr=options.lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, torch.optim.AdamW(rest, **adam)]


def rate(step: int, options: Options) -> float:
    """The share of the peak learning rate at a step: up, flat, down to zero."""
    return max(0.0, min(1.0, (step + 1) / options.warmup, (options.steps - step) / options.decay))


def run_step(
    model: Model, data: Iterator[tuple[int, Tensor, Tensor]], n: int
) -> tuple[float, int, int]:
    """Accumulate the gradient of `n` batches; the mean loss, the tokens, the last part used."""
    chosen = [next(data) for _ in range(n)]
    n_learnt = sum(int((targets >= 0).sum()) for _, _, targets in chosen)
    total = 0.0
    for _, ids, targets in chosen:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids)
        loss = (
            F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
            / n_learnt
        )
        loss.backward()
        total += float(loss.detach())
    return total, sum(ids.numel() for _, ids, _ in chosen), chosen[-1][0]


class Run:
    """A training run: the model, its optimizers, and its progress."""

    def __init__(self, options: Options) -> None:
        torch.set_num_threads(options.threads)
        torch.manual_seed(options.seed)
        self.options = options
        self.folder = Path(options.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model = Model(Shape())
        self.optimizers = make_optimizers(self.model, options)
        self.step, self.n_tokens, self.part, self.seconds = 0, 0, 0, 0.0

    def resume(self) -> None:
        """Continue from the checkpoint in the run folder, if there is one."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self.step, self.n_tokens, self.seconds = state["step"], state["n_tokens"], state["seconds"]
        self.part = state["part"] + 1

    def save(self) -> None:
        """Write the checkpoint in one step, so that a reader never gets an incomplete one."""
        path = self.folder / CHECKPOINT
        part = path.with_suffix(".part")
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "shape": asdict(self.model.shape),
            "options": asdict(self.options),
            "step": self.step,
            "n_tokens": self.n_tokens,
            "part": self.part,
            "seconds": self.seconds,
        }
        torch.save(state, part)
        os.replace(part, path)

    def advance(self, data: Iterator[tuple[int, Tensor, Tensor]]) -> float:
        """One optimizer step; its mean loss."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.options.lr * rate(self.step, self.options)
        loss, n_new, self.part = run_step(self.model, data, self.options.accumulate)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step, self.n_tokens = self.step + 1, self.n_tokens + n_new
        return loss

    def log(self, loss: float) -> None:
        """Append one line to the loss log."""
        row = {
            "step": self.step,
            "tokens": self.n_tokens,
            "seconds": round(self.seconds, 1),
            "loss": round(loss, 5),
        }
        with (self.folder / "loss.jsonl").open("a") as log:
            log.write(json.dumps(row) + "\n")
        print(row, flush=True)


def train(options: Options) -> None:
    """Run until `options.steps`, from the checkpoint in the run folder if there is one."""
    run = Run(options)
    run.resume()
    data = shuffled_batches(options, run.part)
    started = saved = time.monotonic()
    before, losses = run.seconds, []
    while run.step < options.steps:
        losses.append(run.advance(data))
        now = time.monotonic()
        run.seconds = before + now - started
        is_last = run.step == options.steps
        if is_last or run.step % options.report == 0:
            run.log(float(np.mean(losses)))
            losses = []
        if is_last or now - saved > options.checkpoint_seconds:
            saved = now
            run.save()


def main() -> None:
    """Read the options from the command line and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for field in fields(Options):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default
        )
    train(Options(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
