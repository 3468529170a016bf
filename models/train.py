"""Trains a model on an endless stream of samples; stops and resumes at any checkpoint.

In: options (see `Options`). Out, in the run folder: `checkpoint.pt` (weights, optimizer states and
the position in the data, replaced atomically) and `loss.jsonl` (one line per report). The same
seed on the same number of threads repeats a run; a run that was resumed continues at the data
part after the last one it used. Run as a module it trains tgr-mini on the stream of `data.py`;
`models.code.train` trains tgr-mini-code with the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.data import Sample, stream
from models.model import Model, Shape

CHECKPOINT = "checkpoint.pt"
Stream = Callable[[int, int], Iterator[Sample]]
"""The endless samples of a seed and a part."""
Batch = tuple[int, Tensor, Tensor, Tensor]
"""The part of the data, ids (B, T), next ids (B, T), and the weight of each in the loss (B, T)."""


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
    """Threads of one forward pass."""
    workers: int = 1
    """Forward passes at the same time; on a busy machine better than more threads in each."""
    checkpoint_seconds: float = 120.0
    report: int = 20
    """Steps between two lines of the loss log."""


def batches(stream: Stream, options: Options, part: int) -> list[Batch]:
    """One pool of a stream as padded batches."""
    samples = stream(options.seed, part)
    pool = sorted((next(samples) for _ in range(options.pool)), key=lambda s: len(s.ids))
    groups: list[list[Sample]] = [[]]
    for sample in pool:
        # The pool is sorted, so the newest sample is the longest of its batch.
        if (len(groups[-1]) + 1) * len(sample.ids) > options.micro_tokens:
            groups.append([])
        groups[-1].append(sample)
    return [(part, *padded(group)) for group in groups]


def padded(samples: list[Sample]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, next ids and their weights, padded at the right to a multiple of 16."""
    longest = max(len(s.ids) for s in samples) - 1
    width = -(-longest // 16) * 16
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    targets, weights = torch.zeros_like(ids), torch.zeros(len(samples), width)
    for row, sample in enumerate(samples):
        n = len(sample.ids) - 1
        whole = torch.from_numpy(sample.ids.astype(np.int64))
        ids[row, :n], targets[row, :n] = whole[:-1], whole[1:]
        weights[row, :n] = torch.from_numpy(sample.learnt[1:].astype(np.float32))
    return ids, targets, weights


def shuffled_batches(stream: Stream, options: Options, part: int) -> Iterator[Batch]:
    """Endless batches from `part` on."""
    while True:
        pool = batches(stream, options, part)
        for i in np.random.default_rng([options.seed, part]).permutation(len(pool)):
            yield pool[int(i)]
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
    model: Model, data: Iterator[Batch], n: int, workers: ThreadPoolExecutor
) -> tuple[np.ndarray, int, int]:
    """The gradient of `n` batches; the mean loss of all tokens and of those with full weight, the
    number of tokens, the last part used."""
    chosen = [next(data) for _ in range(n)]
    learnt = sum(float(weights.sum()) for *_, weights in chosen)
    parameters = list(model.parameters())

    n_full = sum(int((weights >= 1).sum()) for *_, weights in chosen)

    def one(batch: Batch) -> tuple[np.ndarray, tuple[Tensor, ...]]:
        _, ids, targets, weights = batch
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids)
        each = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
        loss = each @ weights.flatten() / learnt
        full = each.detach() @ (weights.flatten() >= 1).float() / max(n_full, 1)
        losses = np.array([float(loss.detach()), float(full)])
        return losses, torch.autograd.grad(loss, parameters)

    total = np.zeros(2)
    for loss, gradients in workers.map(one, chosen):  # added in their order: a run repeats
        total += loss
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    return total, sum(ids.numel() for _, ids, *_ in chosen), chosen[-1][0]


class Run:
    """A training run: the model, its optimizers, and its progress."""

    def __init__(self, options: Options, shape: Shape) -> None:
        torch.set_num_threads(options.threads * options.workers)  # of the optimizer
        self.workers = ThreadPoolExecutor(
            options.workers, initializer=torch.set_num_threads, initargs=(options.threads,)
        )
        torch.manual_seed(options.seed)
        self.options = options
        self.folder = Path(options.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model = Model(shape)
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

    def advance(self, data: Iterator[Batch]) -> np.ndarray:
        """One optimizer step; its mean losses, see `run_step`."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.options.lr * rate(self.step, self.options)
        loss, n_new, self.part = run_step(self.model, data, self.options.accumulate, self.workers)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step, self.n_tokens = self.step + 1, self.n_tokens + n_new
        return loss

    def log(self, loss: float, full: float) -> None:
        """Append one line to the loss log."""
        row = {
            "step": self.step,
            "tokens": self.n_tokens,
            "seconds": round(self.seconds, 1),
            "loss": round(loss, 5),
            "full": round(full, 5),
        }
        with (self.folder / "loss.jsonl").open("a") as log:
            log.write(json.dumps(row) + "\n")
        print(row, flush=True)


def train(
    options: Options, shape: Shape, stream: Stream, start: Callable[[Model], None] | None = None
) -> None:
    """Run until `options.steps`, from the checkpoint in the run folder if there is one. `start`
    changes the first weights."""
    run = Run(options, shape)
    if start is not None:
        start(run.model)
    run.resume()
    data = shuffled_batches(stream, options, run.part)
    started = saved = time.monotonic()
    before, losses = run.seconds, []
    while run.step < options.steps:
        losses.append(run.advance(data))
        now = time.monotonic()
        run.seconds = before + now - started
        is_last = run.step == options.steps
        if is_last or run.step % options.report == 0:
            run.log(*np.mean(losses, axis=0).tolist())
            losses = []
        if is_last or now - saved > options.checkpoint_seconds:
            saved = now
            run.save()


def read_options(doc: str | None, defaults: Options) -> Options:
    """The options from the command line; each field is a flag."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for field in fields(Options):
        name, default = field.name.replace("_", "-"), getattr(defaults, field.name)
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return Options(**vars(parser.parse_args()))


def main() -> None:
    """Read the options from the command line and train."""
    train(read_options(__doc__, Options()), Shape(), stream)


if __name__ == "__main__":
    main()
