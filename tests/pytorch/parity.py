# A LLaMA and the CNN on 2 ranks, here and under PyTorch's FSDP2 over gloo: the same weights, batches, clipping and accumulation
# give the same loss within 1e-5 in each of 50 steps, and the same weights at the end.
import os, tempfile, warnings

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from common import *

RANKS, STEPS = 2, 50


class SyncBatchNorm(nn.BatchNorm2d):
    """Statistics over all ranks, as torch.nn.SyncBatchNorm computes them, which wants GPUs."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        total = lambda t: torch.distributed.nn.functional.all_reduce(t)
        n = torch.tensor([x.numel() / x.shape[1]], dtype=x.dtype)
        dist.all_reduce(n)
        mean = total(x.sum((0, 2, 3))) / n
        centred = x - mean[None, :, None, None]
        variance = total((centred * centred).sum((0, 2, 3))) / n
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * n / (n - 1), self.momentum)
        scale = self.weight / torch.sqrt(variance + self.eps)
        return centred * scale[None, :, None, None] + self.bias[None, :, None, None]


def step_fsdp2(model, loss_of, micro_batches, optimizer, clip):
    """One optimizer step; its loss over all ranks and its gradient norm."""
    totals = torch.zeros(2, dtype=torch.float64)
    for batch in micro_batches:
        loss, n = loss_of(model, batch)
        loss.backward()
        totals += torch.tensor([loss.item(), n], dtype=torch.float64)
    dist.all_reduce(totals)
    loss, count = totals.tolist()
    for p in model.parameters():  # FSDP2 gives the mean over the ranks of the sums
        p.grad *= RANKS / count
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip).full_tensor().item()
    rate = optimizer.param_groups[0]["lr"]
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss / count, "grad_norm": norm, "lr": rate}


def run_fsdp2(rank, port, build, steps, clip, make, results):
    """`build` makes the model and its loss, `steps` hold the samples of each micro-batch of each rank."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # of the collectives that gradients pass through
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    model, blocks, loss_of = build()
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = make_optimizer(parameters=model.parameters(), **make["optimizer"])
    schedule = make_schedule(optimizer, steps=len(steps), **make["schedule"])
    curve = []
    for micro_batches in steps:
        curve.append(step_fsdp2(model, loss_of, [b[rank] for b in micro_batches], optimizer, clip))
        schedule.step()
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save({"curve": curve, "state": state}, results)
    dist.barrier()
    dist.destroy_process_group()


class BuildLlama:
    def __init__(self, folder, ids):
        self.folder, self.ids = folder, ids

    def __call__(self):
        model = load_llama(self.folder, torch.float32)
        return model, model.model.layers, lambda m, samples: llama_loss(m, self.ids[samples])


class BuildCNN:
    def __init__(self, path, size, classes, hidden, images, labels):
        self.path, self.shape, self.images, self.labels = path, (size, classes, hidden), images, labels

    def __call__(self):
        model = CNN(*self.shape, norm=SyncBatchNorm)
        load_cnn(model, self.path)
        loss = lambda m, samples: (F.cross_entropy(m(self.images[samples]), self.labels[samples], reduction="sum"), len(samples))
        return model, [model.cnn_stack1, model.linear_stack1, model.cnn_stack2, model.linear_stack2], loss


def compare(name, folder, flags, build, recipe, clip):
    metrics, samples = train(os.path.join(folder, "run"), RANKS, *flags, "--sharding_strategy", "full", "--max_steps", STEPS, "--grad_clip", clip,
                             "--export_dir", os.path.join(folder, "ours"))
    steps = [samples[step] for step in range(1, STEPS + 1)]
    results = os.path.join(folder, "fsdp2.pt")
    port = 20000 + os.getpid() % 12000
    torch.multiprocessing.spawn(run_fsdp2, (port, build, steps, clip, recipe, results), nprocs=RANKS)
    theirs = torch.load(results)
    worst = compare_curves(metrics, theirs["curve"], 1e-5, name)
    ours = load_file(os.path.join(folder, "ours", "model.safetensors"))
    off = max((ours[n].double() - t.double()).abs().max().item() for n, t in theirs["state"].items() if n in ours)
    require(off <= 1e-3, f"{name}: weights differ by up to {off} after {STEPS} steps")
    first, last = theirs["curve"][0]["loss"], theirs["curve"][-1]["loss"]
    require(last < first - 0.1, f"{name}: nothing was learned, {first} to {last}")
    print(f"{name}: {STEPS} steps on {RANKS} ranks as FSDP2 makes them, loss {first:.4f} to {last:.4f} within {worst:.1e}, weights within {off:.1e}",
          flush=True)


def compare_llama(folder, generator):
    make_llama(os.path.join(folder, "start"), hidden_size=64, intermediate_size=128, num_hidden_layers=3)
    ids = write_text(os.path.join(folder, "text"), 300, 32, generator)
    recipe = {"optimizer": dict(kind="adamw", lr=1e-3), "schedule": dict(style="cosine", lr=1e-3, warmup=5)}
    flags = ["--init_from", os.path.join(folder, "start"), "--dataset", os.path.join(folder, "text"), "--max_context_width", 32, "--train_batch_size", 4,
             "--gradient_accumulation_steps", 2, "--lr", 1e-3, "--warmup", 5, "--lr_decay_style", "cosine"]
    compare("LLaMA", folder, flags, BuildLlama(os.path.join(folder, "start"), ids), recipe, 0.5)


def compare_cnn(folder, generator):
    size, classes, hidden = 16, 10, 32
    torch.manual_seed(3)
    start = os.path.join(folder, "start.safetensors")
    save_cnn(CNN(size, classes, hidden), start)
    images, labels = write_images(os.path.join(folder, "images"), 400, size, classes, generator)
    recipe = {"optimizer": dict(kind="sgd", lr=0.05, weight_decay=1e-3), "schedule": dict(style="linear", lr=0.05, min_lr=0.01)}
    flags = ["--model_type", "cnn", "--hidden_width", hidden, "--init_from", start, "--dataset", os.path.join(folder, "images"), "--train_batch_size", 8,
             "--gradient_accumulation_steps", 2, "--optimizer", "sgd", "--lr", 0.05, "--min_lr", 0.01, "--lr_decay_style", "linear", "--weight_decay", 1e-3]
    compare("CNN", folder, flags, BuildCNN(start, size, classes, hidden, images, labels), recipe, 0.5)


if __name__ == "__main__":
    for job in (compare_llama, compare_cnn):
        with tempfile.TemporaryDirectory() as folder:
            job(folder, torch.Generator().manual_seed(11))
