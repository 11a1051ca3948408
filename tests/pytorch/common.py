# What the comparisons with PyTorch share: running fsdp, data in its forms, the models, optimizers and schedules as PyTorch has
# them, and a plain training loop to compare with.
import json, math, os, struct, subprocess

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, logging

logging.set_verbosity_error()
logging.disable_progress_bar()

fsdp = os.path.join(os.environ["FSDP_BUILD"], "fsdp")


class Difference(Exception):
    pass


def require(condition, message):
    if not condition:
        raise Difference(message)


def command(*words, code=0):
    """Runs fsdp; its standard output as bytes."""
    done = subprocess.run([fsdp, *map(str, words)], capture_output=True)
    require(done.returncode == code, f"fsdp {' '.join(map(str, words))}: exit code {done.returncode}: {done.stderr.decode(errors='replace')}"
            f"{done.stdout.decode(errors='replace')[-2000:]}")
    return done.stdout


def train(folder, ranks, *flags):
    """Trains on so many ranks; the lines of metrics.jsonl by step, and the micro-batches of each step, over all ranks."""
    run = ["run", "--standalone", "--plain", "--nproc-per-node", ranks, fsdp] if ranks > 1 else []
    samples = os.path.join(folder, "samples")
    command(*run, "train", "--device", "cpu", "--threads", 1, "--output_dir", folder, "--log_samples", samples, "--logging_freq", 100000,
            "--sample_tokens", 0, *flags)
    return read_metrics(folder), read_samples(samples)


def read_metrics(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as lines:
        return {line["step"]: line for line in map(json.loads, lines)}


def read_samples(path):
    """{step: [micro-batch: {rank: [sample, ...]}, ...]}"""
    by_rank = {}
    with open(path) as lines:
        for line in lines:
            step, rank, *samples = map(int, line.split())
            by_rank.setdefault(step, {}).setdefault(rank, []).append(samples)
    return {step: [{rank: parts[i] for rank, parts in ranks.items()} for i in range(max(map(len, ranks.values())))]
            for step, ranks in by_rank.items()}


def flat(micro_batch):
    return [sample for rank in sorted(micro_batch) for sample in micro_batch[rank]]


# ---- Data ----

def write_text(path, n_samples, width, generator):
    """n_samples contexts of `width` bytes with something to learn in them; their ids."""
    ids = torch.randint(97, 113, (n_samples * width,), generator=generator)
    ids[1::2] = ids[0::2][: len(ids[1::2])] + 1
    with open(path, "wb") as out:
        out.write(bytes(ids.tolist()))
    return ids.view(n_samples, width)


def write_images(folder, n, size, classes, generator):
    """A folder in MNIST's form; pixels of 0 to 1 and classes."""
    os.makedirs(folder)
    pixels = torch.randint(0, 256, (n, size, size), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, classes, (n,), generator=generator)
    labels[:classes] = torch.arange(classes)
    pixels[torch.arange(n), labels, :] = 255
    with open(os.path.join(folder, "train-images-idx3-ubyte"), "wb") as out:
        out.write(struct.pack(">iiii", 0x803, n, size, size) + pixels.numpy().tobytes())
    with open(os.path.join(folder, "train-labels-idx1-ubyte"), "wb") as out:
        out.write(struct.pack(">ii", 0x801, n) + labels.to(torch.uint8).numpy().tobytes())
    return (pixels.float() / 255).unsqueeze(1), labels


# ---- Models ----

def make_llama(folder, seed=1, **changes):
    """A random LLaMA in a folder as transformers saves it."""
    torch.manual_seed(seed)
    shape = dict(vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=64, attn_implementation="eager")
    model = LlamaForCausalLM(LlamaConfig(**{**shape, **changes}))
    model.save_pretrained(folder)
    return model


def load_llama(folder, dtype):
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").train()


class CNN(nn.Module):
    """The network of src/models/cnn.c; `norm` makes its batch norm."""

    def __init__(self, size, classes, hidden, norm=nn.BatchNorm2d):
        super().__init__()
        self.cnn_stack1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), norm(8), nn.ReLU(), nn.MaxPool2d(2),
                                        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.linear_stack1 = nn.Sequential(nn.Flatten(), nn.Linear(16 * (size // 4) ** 2, hidden), nn.ReLU(), nn.Linear(hidden, classes))
        self.cnn_stack2 = nn.Sequential(nn.Conv2d(1, 4, 5, stride=2, padding=2), nn.ReLU(), nn.AvgPool2d(2))
        self.linear_stack2 = nn.Sequential(nn.Flatten(), nn.Linear(4 * ((size + 1) // 4) ** 2, classes))

    def forward(self, x):
        return self.linear_stack1(self.cnn_stack1(x)) + self.linear_stack2(self.cnn_stack2(x))


def save_cnn(model, path):
    save_file({name: t.contiguous() for name, t in model.state_dict().items() if not name.endswith("num_batches_tracked")}, path)


def load_cnn(model, path):
    model.load_state_dict(load_file(path), strict=False)


def llama_loss(model, batch):
    """Sum of the losses of what follows each token, and their number."""
    logits = model(input_ids=batch).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"), batch.numel() - len(batch)


# ---- Optimizers and schedules ----

def make_optimizer(kind, parameters, lr, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, momentum=0.9):
    parameters = [p for p in parameters if p.requires_grad]
    if kind == "adamw":  # decays matrices only
        groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
                  {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps)
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)


def make_schedule(optimizer, style, steps, lr, min_lr=0.0, warmup=0, gamma=0.5, step_size=3, plateau=0.4):
    from torch.optim import lr_scheduler as s
    after = steps - warmup
    floor = lambda rate: lambda i: max(min_lr / lr, rate(i))
    made = {"constant": lambda: s.ConstantLR(optimizer, 1.0, 1),
            "linear": lambda: s.LinearLR(optimizer, 1.0, max(min_lr / lr, 1e-30), after),
            "cosine": lambda: s.LambdaLR(optimizer, lambda i: min_lr / lr + (1 - min_lr / lr) * 0.5 * (1 + math.cos(math.pi * min(1, i / after))))
            if warmup else s.CosineAnnealingLR(optimizer, after, min_lr),
            "exponential": lambda: s.LambdaLR(optimizer, floor(lambda i: gamma ** i)) if min_lr else s.ExponentialLR(optimizer, gamma),
            "step": lambda: s.LambdaLR(optimizer, floor(lambda i: gamma ** (i // step_size))) if min_lr else s.StepLR(optimizer, step_size, gamma),
            "plateau": lambda: s.LambdaLR(optimizer, lambda i: min_lr / lr + (1 - min_lr / lr) * (1 - max(0, i - plateau * steps) / (after - plateau * steps)))}
    main = made[style]()
    if not warmup:
        return main
    for group in optimizer.param_groups:
        group["lr"] = lr
    return s.SequentialLR(optimizer, [s.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1), main], [warmup])


# ---- The loop to compare with ----

def train_plainly(model, loss_of, steps, optimizer, schedule=None, clip=0.0):
    """`steps`: for each step its micro-batches; loss_of(model, micro_batch) gives sum and count. Losses and norms by step."""
    curve = []
    for micro_batches in steps:
        total = count = 0
        optimizer.zero_grad()
        for batch in micro_batches:
            loss, n = loss_of(model, batch)
            loss.backward()
            total, count = total + loss.item(), count + n
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= count
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip if clip else math.inf).item()
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        if schedule:
            schedule.step()
        curve.append({"loss": total / count, "grad_norm": norm, "lr": rate})
    return curve


def compare_curves(metrics, curve, tolerance, what):
    """Losses within `tolerance`, norms within a hundred times that, relative; the largest difference of the losses."""
    require(len(metrics) == len(curve), f"{what}: {len(metrics)} steps instead of {len(curve)}")
    worst = 0.0
    for step, wanted in enumerate(curve, 1):
        got = metrics[step]
        off = abs(got["loss"] - wanted["loss"])
        require(off <= tolerance, f"{what}, step {step}: loss {got['loss']:.8f}, PyTorch's {wanted['loss']:.8f}")
        require(abs(got["grad_norm"] - wanted["grad_norm"]) <= 100 * tolerance * max(1, wanted["grad_norm"]),
                f"{what}, step {step}: gradient norm {got['grad_norm']}, PyTorch's {wanted['grad_norm']}")
        require(abs(got["lr"] - wanted["lr"]) <= 1e-6 * abs(wanted["lr"]) + 1e-12,
                f"{what}, step {step}: learning rate {got['lr']}, PyTorch's {wanted['lr']}")
        worst = max(worst, off)
    return worst


def compare_weights(path, model, tolerance, what):
    ours = load_file(path)
    for name, theirs in model.state_dict().items():
        if name not in ours:
            continue
        off = (ours[name].double() - theirs.double()).abs().max().item()
        require(off <= tolerance, f"{what}: {name} differs by up to {off}")
