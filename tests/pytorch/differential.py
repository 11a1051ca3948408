# Random jobs, each made again in PyTorch: optimizers and schedules, hybrid groups, resumes at other world sizes and through
# resharded checkpoints, samplers, uneven batches of images, generated text. usage: differential.py [KIND[=CASES]...]
# FSDP_PYTORCH_SEED chooses other jobs.
import json, os, random, shutil, sys, tempfile, time

from common import *

WIDTH = 16
TOLERANCE = 2e-5


class Rig:
    """Start weights and text that all jobs of a kind share."""

    def __init__(self, folder):
        self.folder = folder
        self.start = os.path.join(folder, "start")
        self.text = os.path.join(folder, "text")
        make_llama(self.start, hidden_size=16, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1)
        self.ids = write_text(self.text, 97, WIDTH, torch.Generator().manual_seed(5))

    def flags(self):
        return ["--init_from", self.start, "--dataset", self.text, "--max_context_width", WIDTH]

    def reference(self, samples, recipe, schedule, clip):
        """The same steps in float64, one process."""
        model = load_llama(self.start, torch.float64)
        optimizer = make_optimizer(parameters=model.parameters(), **recipe)
        steps = [[self.ids[flat(b)] for b in samples[step]] for step in sorted(samples)]
        planned = make_schedule(optimizer, steps=len(steps), **schedule)
        return model, train_plainly(model, llama_loss, steps, optimizer, planned, clip)


def optimizer_case(rig, folder, r):
    kind = r.choice(["adamw", "adam", "sgd"])
    lr = {"adamw": 3e-3, "adam": 3e-3, "sgd": 0.1}[kind] * r.choice([1, 0.5])
    recipe = dict(kind=kind, lr=lr, weight_decay=r.choice([0, 0.1] if kind == "adamw" else [0, 1e-3]))
    flags = ["--optimizer", kind, "--lr", lr, "--weight_decay", recipe["weight_decay"]]
    if kind == "sgd":
        recipe["momentum"] = r.choice([0, 0.9])
        flags += ["--momentum", recipe["momentum"]]
    else:
        recipe |= dict(beta1=r.choice([0.8, 0.9]), beta2=r.choice([0.95, 0.999]), eps=r.choice([1e-8, 1e-6]))
        for key in ("beta1", "beta2", "eps"):
            flags += ["--" + key, recipe[key]]
    schedule = dict(style=r.choice(["constant", "linear", "cosine", "exponential", "step", "plateau"]), lr=lr, warmup=r.choice([0, 0, 3]),
                    min_lr=r.choice([0, lr / 10]), gamma=r.choice([0.5, 0.9]), step_size=r.choice([2, 5]), plateau=r.choice([0.4, 0.6]))
    flags += ["--lr_decay_style", schedule["style"], "--warmup", schedule["warmup"], "--min_lr", schedule["min_lr"], "--lr_gamma", schedule["gamma"],
              "--lr_step_size", schedule["step_size"], "--plateau", schedule["plateau"]]
    clip = r.choice([0, 0.5, 1.0])
    ranks, accumulation = r.choice([1, 2, 3]), r.choice([1, 2, 3])
    strategy = r.choice(["full", "shard_grad_op", "shard_op", "no_shard"])
    flags += ["--grad_clip", clip, "--gradient_accumulation_steps", accumulation, "--sharding_strategy", strategy, "--max_steps", 15,
              "--train_batch_size", r.choice([1, 2, 3]), "--no_checkpoint_at_end", "--seed", r.randrange(1000)]
    if r.random() < 0.3:
        flags += ["--no_sync_each_micro_batch"]
    metrics, samples = train(folder, ranks, *rig.flags(), *flags)
    _, curve = rig.reference(samples, recipe, schedule, clip)
    return compare_curves(metrics, curve, TOLERANCE, f"{ranks} ranks {' '.join(map(str, flags))}")


CONSTANT = dict(style="constant", lr=3e-3)
ADAMW = dict(kind="adamw", lr=3e-3)
PLAIN = ["--lr", 3e-3, "--lr_decay_style", "constant", "--grad_clip", 0.5]


def hybrid_case(rig, folder, r):
    ranks, group = r.choice([(2, 1), (2, 2), (4, 2), (4, 2), (4, 1), (4, 4), (6, 2), (6, 3)])
    flags = PLAIN + ["--sharding_strategy", r.choice(["hybrid", "hybrid_zero2"]), "--shard_group_size", group, "--max_steps", 12, "--train_batch_size",
                     r.choice([1, 2]), "--gradient_accumulation_steps", r.choice([1, 2]), "--no_checkpoint_at_end"]
    if r.random() < 0.3:
        flags += ["--activation_checkpointing", r.choice(["full", "selective"])]
    metrics, samples = train(folder, ranks, *rig.flags(), *flags)
    _, curve = rig.reference(samples, ADAMW, CONSTANT, 0.5)
    return compare_curves(metrics, curve, TOLERANCE, f"{ranks} ranks {' '.join(map(str, flags))}")


def resume_case(rig, folder, r):
    """Up to three parts of a run, each with its own ranks and strategy, now and then through a chain of reshards."""
    total, at, batch = 12, 0, 12
    told = []
    source = None
    while at < total:
        ranks = r.choice([1, 2, 3, 4])
        end = min(total, at + r.choice([3, 5, 12])) if source else r.choice([2, 4, 7])
        strategy = r.choice(["full", "shard_grad_op", "shard_op", "no_shard"])
        kind = r.choice(["sharded", "full"])
        flags = PLAIN + ["--sharding_strategy", strategy, "--train_batch_size", batch // ranks, "--max_steps", end, "--checkpoint_kind", kind,
                         r.choice(["--async_checkpoint", "--no_async_checkpoint"])]
        told.append(f"{ranks} ranks {strategy} to {end} {kind}")
        metrics, samples = train(folder, ranks, *rig.flags(), *flags, *(["--resume_from_checkpoint", named] if source else []))
        at, source = end, os.path.join(folder, "checkpoints")
        named = source
        for link in range(r.choice([0, 0, 1, 2, 3])):
            world, kind = r.choice([1, 2, 3, 5]), r.choice(["sharded", "full"])
            chained = os.path.join(folder, f"chain-{at}-{link}")
            before = os.path.join(source, f"step-{at:08d}")
            command("ckpt", "reshard", before, chained, "--world_size", world, "--kind", kind)
            command("ckpt", "verify", chained)
            command("ckpt", "diff", before, chained)
            shutil.rmtree(before)  # from elsewhere, it would be another run that wants this one's folder
            shutil.move(os.path.join(chained, f"step-{at:08d}"), before)
            named = before  # it does not say that it is this run's, so older ones would come first
            told.append(f"resharded to {world} {kind}")
    what = ", ".join(told)
    model, curve = rig.reference(samples, ADAMW, CONSTANT, 0.5)
    worst = compare_curves(metrics, curve, TOLERANCE, what)
    command("ckpt", "export", named, os.path.join(folder, "exported"))
    compare_weights(os.path.join(folder, "exported", "model.safetensors"), model, 1e-4, what)
    return worst


def sampler_case(rig, folder, r):
    """Batches as torch's BatchSampler cuts them; shuffled epochs are permutations, the same on any number of ranks."""
    n, epochs, ranks, batch, accumulation = r.randrange(5, 60), r.choice([1, 2, 3]), r.choice([1, 2, 3, 4]), r.choice([1, 2, 3]), r.choice([1, 2])
    shuffle, seed = r.random() < 0.6, r.randrange(1000)
    text = os.path.join(folder, "text")
    os.makedirs(folder)
    write_text(text, n, WIDTH, torch.Generator().manual_seed(n))
    flags = ["--init_from", rig.start, "--max_context_width", WIDTH, "--dataset", text, "--epochs", epochs, "--train_batch_size", batch,
             "--gradient_accumulation_steps", accumulation, "--seed", seed, "--shuffle" if shuffle else "--no_shuffle", "--no_checkpoint_at_end",
             "--sharding_strategy", "full"]
    what = f"{n} samples on {ranks} ranks {' '.join(map(str, flags[6:]))}"
    _, samples = train(os.path.join(folder, "run"), ranks, *flags)
    batches = [flat(b) for step in sorted(samples) for b in samples[step]]
    sizes = [len(b) for b in torch.utils.data.BatchSampler(range(n), batch * ranks, drop_last=False)] * epochs
    require([len(b) for b in batches] == sizes, f"{what}: batches of {[len(b) for b in batches]} instead of {sizes}")
    order = sum(batches, [])
    parts = [order[i * n:(i + 1) * n] for i in range(epochs)]
    for part in parts:
        require(sorted(part) == list(range(n)), f"{what}: an epoch is no permutation")
        require(shuffle or part == list(torch.utils.data.SequentialSampler(range(n))), f"{what}: not in the data's order")
    if shuffle:
        require(n < 8 or all(a != b for a, b in zip(parts, parts[1:])), f"{what}: two epochs have one order")
        _, alone = train(os.path.join(folder, "alone"), 1, *flags)
        require(sum((flat(b) for step in sorted(alone) for b in alone[step]), []) == order, f"{what}: one rank has another order")
    return 0.0


def image_case(rig, folder, r):
    """The CNN with batches that do not divide evenly: batch norm counts images, wherever they are."""
    n, size, classes, hidden = r.randrange(11, 40), 8, 4, 8
    ranks, batch, epochs = r.choice([1, 2, 3, 4]), r.choice([2, 3, 4]), r.choice([1, 2])
    os.makedirs(folder)
    start, data = os.path.join(folder, "start.safetensors"), os.path.join(folder, "images")
    torch.manual_seed(n)
    save_cnn(CNN(size, classes, hidden), start)
    images, labels = write_images(data, n, size, classes, torch.Generator().manual_seed(n))
    flags = ["--model_type", "cnn", "--hidden_width", hidden, "--init_from", start, "--dataset", data, "--train_batch_size", batch, "--epochs", epochs, "--optimizer", "sgd",
             "--weight_decay", 0.1, "--lr", 0.05, "--lr_decay_style", "constant", "--grad_clip", 0.5, "--sharding_strategy", r.choice(["full", "no_shard"])]
    what = f"{n} images on {ranks} ranks {' '.join(map(str, flags[8:]))}"
    exported = os.path.join(folder, "exported")
    metrics, samples = train(os.path.join(folder, "run"), ranks, *flags, "--export_dir", exported)
    model = CNN(size, classes, hidden)
    load_cnn(model, start)
    model.double()
    loss = lambda m, b: (F.cross_entropy(m(images[b].double()), labels[b], reduction="sum"), len(b))
    # Adam would make steps of what rounding leaves of a gradient that is zero, that of a bias in front of a batch norm.
    optimizer = make_optimizer("sgd", model.parameters(), 0.05)
    curve = train_plainly(model, loss, [[flat(b) for b in samples[step]] for step in sorted(samples)], optimizer, None, 0.5)
    worst = compare_curves(metrics, curve, TOLERANCE, what)
    compare_weights(os.path.join(exported, "model.safetensors"), model, 1e-4, what)
    return worst


def generation_case(rig, folder, r):
    """What a random LLaMA writes when it always takes the likeliest token."""
    heads = r.choice([2, 4])
    changes = dict(hidden_size=r.choice([16, 32]), num_attention_heads=heads, num_key_value_heads=r.choice([1, 2, heads]), num_hidden_layers=r.choice([1, 2, 3]),
                   head_dim=r.choice([8, 16]), tie_word_embeddings=r.random() < 0.5, max_position_embeddings=128, initializer_range=0.3)
    if r.random() < 0.4:
        changes["attention_bias"] = True
    model = make_llama(folder, seed=r.randrange(10000), **changes).double().eval()
    prompt = "".join(r.choice("abcdefgh ") for _ in range(r.randrange(1, 40)))
    n = r.choice([1, 8, 40])
    with torch.no_grad():
        ids = torch.tensor([list(prompt.encode())])
        scores = []
        for _ in range(n):
            logits = model(input_ids=ids).logits[0, -1]
            scores.append((logits.topk(2).values[0] - logits.topk(2).values[1]).item())
            ids = torch.cat([ids, logits.argmax().view(1, 1)], 1)
    wanted = bytes(i for i in ids[0, len(prompt):].tolist() if i).decode(errors="replace")  # 0 is the end token: not shown
    got = command("generate", "--model", folder, "--prompt", prompt, "--max_new_tokens", n, "--device", "cpu", "--threads", 1, "--no_stop_at_eos")[:-1].decode()
    if got != wanted and min(scores) < 1e-4:
        return 0.0  # a tie as far as float32 can tell
    require(got == wanted, f"{changes}, prompt {prompt!r}: {got!r} instead of {wanted!r}")
    return 0.0


KINDS = {"optimizers": (optimizer_case, 80), "hybrids": (hybrid_case, 45), "resumes": (resume_case, 100), "samplers": (sampler_case, 60),
         "images": (image_case, 30), "generations": (generation_case, 55)}


def run_kind(name, cases, seed):
    case, begin, worst, failures = KINDS[name][0], time.time(), 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(folder)
        for i in range(cases):
            place = os.path.join(folder, "case")
            try:
                worst = max(worst, case(rig, place, random.Random(f"{seed} {name} {i}")))
            except Difference as difference:
                failures += 1
                print(f"FAILED: {name} {i} (FSDP_PYTORCH_SEED={seed}): {difference}", flush=True)
            shutil.rmtree(place, ignore_errors=True)
    print(f"{name}: {cases - failures} of {cases} as PyTorch has them, loss within {worst:.1e}, {time.time() - begin:.0f} s", flush=True)
    return failures


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = [word.partition("=") for word in sys.argv[1:]] or [(name, "", "") for name in KINDS]
    seed = os.environ.get("FSDP_PYTORCH_SEED", "1")
    sys.exit(sum(run_kind(name, int(cases or KINDS[name][1]), seed) for name, _, cases in wanted) > 0)
