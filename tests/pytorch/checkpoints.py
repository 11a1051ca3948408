# Weights both ways between PyTorch and here: files of torch.save, drawn from a seed, and checkpoints of
# torch.distributed.checkpoint with their optimizer. A LLaMA trained under FSDP2 on 2 ranks goes on here on 1 and 3, and one
# trained here goes on there, as if nothing had happened: the same losses within 1e-5.
import os, pickle, random, tempfile, warnings, zipfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from common import *

RANKS, STEPS, LR = 2, 4, 1e-2


# ---- Files ----

def draw_tensor(r):
    shape = [r.randint(0 if r.random() < 0.1 else 1, 6) for _ in range(r.randint(0, 4))]
    t = torch.randn(shape).to(r.choice([torch.float32] * 3 + [torch.bfloat16, torch.float16, torch.float64]))
    for _ in range(r.randint(0, 3)):
        if t.dim() == 0:
            break
        d = r.randrange(t.dim())
        how = r.choice(["permute", "slice", "step", "expand", "select", "view"])
        if how == "permute":
            t = t.permute(r.sample(range(t.dim()), t.dim()))
        elif how == "slice" and t.shape[d] > 1:
            t = t.narrow(d, 1, t.shape[d] - 1)
        elif how == "step" and t.shape[d] > 1:
            t = t[(slice(None),) * d + (slice(None, None, 2),)]
        elif how == "expand" and t.dim() < 6:
            t = t.unsqueeze(d).expand(*t.shape[:d], 3, *t.shape[d:])
        elif how == "select" and t.shape[d] > 0:
            t = t.select(d, r.randrange(t.shape[d]))
    return torch.nn.Parameter(t) if r.random() < 0.2 else t


def compare_files(folder, seeds):
    for seed in seeds:
        r = random.Random(seed)
        torch.manual_seed(seed)
        tensors = {f"layer.{i}.é{i}": draw_tensor(r) for i in range(r.randint(1, 12))}
        names = list(tensors)
        tensors["tied"] = tensors[r.choice(names)]
        if r.random() < 0.5 and tensors["tied"].numel() > 1:
            tensors["part"] = tensors["tied"].detach().flatten()[1:]
        path, plain = os.path.join(folder, f"{seed}.pt"), os.path.join(folder, f"{seed}.safetensors")
        saved = tensors if r.random() < 0.5 else {"epoch": 3, "model": tensors, "args": {"lr": [1e-3, None]}}
        if r.random() < 0.3:
            torch.save(saved, path, _use_new_zipfile_serialization=False, pickle_protocol=r.randint(2, 4))
        else:
            torch.save(saved, path, pickle_protocol=r.randint(2, 5))
        save_file({n: t.detach().contiguous().clone() for n, t in tensors.items()}, plain)
        command("ckpt", "diff", path, plain)
        command("ckpt", "import", path, os.path.join(folder, f"{seed}.run"), "--world_size", r.randint(1, 4))
        command("ckpt", "diff", os.path.join(folder, f"{seed}.run"), plain)
        back = os.path.join(folder, f"{seed}.back.pt")
        command("ckpt", "export", os.path.join(folder, f"{seed}.run"), back, "--format", "pt")
        theirs = torch.load(back, weights_only=True)
        require(set(theirs) == set(tensors), f"seed {seed}: names differ")
        for name, t in tensors.items():
            require(theirs[name].shape == t.shape and torch.equal(theirs[name], t.detach().float()), f"seed {seed}: {name} differs")
        with zipfile.ZipFile(back) as z:
            require(z.testzip() is None, f"seed {seed}: a checksum of the archive is wrong")
    print(f"files: {len(seeds)} drawn state dicts read as PyTorch has them, and written for it", flush=True)


def refuse_harm(folder):
    harm = os.path.join(folder, "harm")

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {harm}",)

    for i, saved in enumerate([{"w": torch.ones(2), "evil": Evil()}, Evil(), {"model": {"w": Evil()}}]):
        for new in [True, False]:
            path = os.path.join(folder, f"evil{i}{new}.pt")
            torch.save(saved, path, _use_new_zipfile_serialization=new)
            command("ckpt", "show", path, code=2)
    metadata = os.path.join(folder, "evil")
    os.makedirs(metadata)
    with open(os.path.join(metadata, ".metadata"), "wb") as out:
        pickle.dump(Evil(), out)
    command("ckpt", "show", metadata, code=2)
    require(not os.path.exists(harm), "a pickle was run")
    print("files: pickles that call something are refused", flush=True)


# ---- Checkpoints ----

def shard(folder):
    model = load_llama(folder, torch.float32)
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def step(model, optimizer, batch):
    loss, n = llama_loss(model, batch)
    loss.backward()
    totals = torch.tensor([loss.item(), n], dtype=torch.float64)
    dist.all_reduce(totals)
    for p in model.parameters():
        p.grad *= RANKS / totals[1].item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return (totals[0] / totals[1]).item()


def run_rank(rank, port, folder, ids, steps, source, flat, saved, results):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    model = shard(folder)
    optimizer = make_optimizer("adamw", model.parameters(), LR)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    if source:
        weights, state = get_state_dict(model, optimizer, options=options)
        loaded = {"model": weights, "optim": state}
        dcp.load(loaded, checkpoint_id=source)
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optim"], options=options)
        group = optimizer.param_groups
        require([g["weight_decay"] for g in group] == [0.1, 0.0] and group[0]["betas"] == (0.9, 0.95) and abs(group[1]["lr"] - LR) < 1e-8,
                f"the options of the optimizer came back as {[{k: v for k, v in g.items() if k != 'params'} for g in group]}")
    losses = [step(model, optimizer, ids[batch[0][rank]]) for batch in steps]
    for path, is_flat in saved:
        weights, state = get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=is_flat))
        dcp.save({"model": weights, "optim": state, "epoch": 3}, checkpoint_id=path)
    if rank == 0:
        torch.save(losses, results)
    dist.barrier()
    dist.destroy_process_group()


def run_torch(folder, ids, steps, source=None, flat=False, saved=()):
    results = os.path.join(folder, "losses.pt")
    port = 20000 + (os.getpid() + random.randrange(1000)) % 12000
    torch.multiprocessing.spawn(run_rank, (port, os.path.join(folder, "start"), ids, steps, source, flat, saved, results), nprocs=RANKS)
    return torch.load(results)


def same_losses(what, ours, theirs):
    off = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    require(off <= 1e-5, f"{what}: losses {ours}, PyTorch's {theirs}")
    return off


def compare_checkpoints(folder, generator):
    start, text = os.path.join(folder, "start"), os.path.join(folder, "text")
    make_llama(start, hidden_size=32, num_hidden_layers=2)
    ids = write_text(text, 12 * STEPS, 16, generator)  # an epoch is STEPS steps: what is imported begins with the first sample, too
    recipe = ["--init_from", start, "--dataset", text, "--max_context_width", 16, "--lr", LR, "--lr_decay_style", "constant", "--warmup", 0,
              "--dropout", 0, "--grad_clip", 1.0, "--weight_decay", 0.1, "--no_shuffle", "--max_steps", 2 * STEPS]
    at = lambda ranks: ["--train_batch_size", 12 // ranks]
    off = 0

    # Here without a break: the losses to meet.
    metrics, samples = train(os.path.join(folder, "whole"), RANKS, *recipe, *at(RANKS), "--checkpoint_freq", STEPS)
    whole = [metrics[i]["loss"] for i in range(1, 2 * STEPS + 1)]
    steps = [samples[i] for i in range(1, 2 * STEPS + 1)]
    checkpoint = os.path.join(folder, "whole", "checkpoints", f"step-{STEPS:08}")

    # There, then here: both forms are imported, and one is trained on at 1 and 3 ranks.
    theirs = [(os.path.join(folder, "nested"), False), (os.path.join(folder, "flat"), True)]
    off = max(off, same_losses("PyTorch from the start", run_torch(folder, ids, steps[:STEPS], saved=theirs), whole[:STEPS]))
    for path, _ in theirs:
        command("ckpt", "import", path, path + "-imported", "--world_size", 2)
        command("ckpt", "diff", path, path + "-imported")
        command("ckpt", "diff", checkpoint, path + "-imported", "--tolerance", "1e-4")
    for ranks in (1, 3):
        run, _ = train(os.path.join(folder, f"on-{ranks}"), ranks, *recipe, *at(ranks), "--resume_from_checkpoint", theirs[0][0] + "-imported")
        off = max(off, same_losses(f"PyTorch's on {ranks} ranks", [run[i]["loss"] for i in sorted(run)], whole[STEPS:]))

    # Here, then there: ours is exported and trained on by PyTorch, which asks for the optimizer in either form.
    ours = os.path.join(folder, "ours")
    command("ckpt", "export", checkpoint, ours, "--format", "dcp", "--world_size", 3)
    for flat in (False, True):
        off = max(off, same_losses("ours in PyTorch", run_torch(folder, ids, steps[STEPS:], ours, flat), whole[STEPS:]))
    print(f"checkpoints: 2 ranks of FSDP2 to 1 and 3 here, and ours there, losses within {off:.1e}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        compare_files(folder, range(40))
        refuse_harm(folder)
        compare_checkpoints(folder, torch.Generator().manual_seed(5))
