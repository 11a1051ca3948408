"""The peer of `fsdp bench step`: a LLaMA decoder trained by PyTorch's FSDP2 on random tokens.

bf16 parameters, fp32 gradients, fused AdamW, clipping, SDPA, blocks and loss compiled. --fp8 RECIPE rounds the blocks' linear layers
with torchao. Starts alone or under torchrun; prints one line of JSON with the keys of `fsdp bench step --json`.
"""

import argparse
import json
import os
import resource
import statistics
import time

began = time.time()
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shape = dict(dim=2048, layers=16, heads=32, kv=8, ffn=8192, vocab=128256, seq=2048, batch=4)
    for name, value in dict(shape, steps=12, warmup=5, accumulate=1, threads=0).items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--untied", action="store_true", help="the output head has weights of its own")
    p.add_argument("--bias", action="store_true", help="queries, keys and values have a bias (Qwen2)")
    p.add_argument("--checkpoint", action="store_true", help="activation checkpointing of every block")
    p.add_argument("--offload", action="store_true", help="parameters, gradients and optimizer in host memory")
    p.add_argument("--eager", action="store_true", help="compile nothing")
    p.add_argument("--fp8", metavar="RECIPE", help="torchao's: tensorwise, rowwise")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    return p.parse_args()


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads, self.kv, self.width = a.heads, a.kv, a.dim // a.heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(a.dim, eps=1e-5), nn.RMSNorm(a.dim, eps=1e-5)
        self.q = nn.Linear(a.dim, a.heads * self.width, bias=a.bias)
        self.k = nn.Linear(a.dim, a.kv * self.width, bias=a.bias)
        self.v = nn.Linear(a.dim, a.kv * self.width, bias=a.bias)
        self.o = nn.Linear(a.heads * self.width, a.dim, bias=False)
        self.gate, self.up = nn.Linear(a.dim, a.ffn, bias=False), nn.Linear(a.dim, a.ffn, bias=False)
        self.down = nn.Linear(a.ffn, a.dim, bias=False)

    def forward(self, x, cos, sin):
        batch, width = x.shape[:2]
        h = self.attention_norm(x)
        q = self.q(h).view(batch, width, self.heads, self.width).transpose(1, 2)
        k = self.k(h).view(batch, width, self.kv, self.width).transpose(1, 2)
        v = self.v(h).view(batch, width, self.kv, self.width).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=self.kv != self.heads
        )
        x = x + self.o(y.transpose(1, 2).reshape(batch, width, -1))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embedding = nn.Embedding(a.vocab, a.dim)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm, self.head = nn.RMSNorm(a.dim, eps=1e-5), nn.Linear(a.dim, a.vocab, bias=False)
        if not a.untied:
            self.head.weight = self.embedding.weight
        self.width = a.dim // a.heads

    def forward(self, tokens):
        h = self.embedding(tokens)
        steps = torch.arange(0, self.width, 2, device=tokens.device).float() / self.width
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device).float(), 500000.0**-steps)
        cos, sin = angles.cos().to(h.dtype), angles.sin().to(h.dtype)
        for block in self.blocks:
            h = block(h, cos, sin)
        return self.head(self.norm(h))


def make_model(a, mesh):
    with torch.device(a.device):
        model = Llama(a)
        for p in model.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
    if a.fp8:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(model.blocks, config=Float8LinearConfig.from_recipe_name(a.fp8))
    if a.checkpoint:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for i, block in enumerate(model.blocks):
            model.blocks[i] = checkpoint_wrapper(block)
    bf16 = a.dtype == "bf16"
    how = dict(mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy())
    if a.offload:
        how["offload_policy"] = CPUOffloadPolicy()
    for block in model.blocks:
        if not a.eager:
            block.compile()
        fully_shard(block, **how)
    return fully_shard(model, **how)


def main():
    a = arguments()
    for name, value in dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29512").items():
        os.environ.setdefault(name, value)
    on_gpu = a.device == "cuda"
    if a.threads:
        torch.set_num_threads(a.threads)
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = make_model(a, dist.device_mesh.init_device_mesh(a.device, (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=None if a.offload else True)

    def loss_of(logits, labels):
        return F.cross_entropy(logits.float().reshape(-1, a.vocab), labels.reshape(-1))

    if not a.eager:
        loss_of = torch.compile(loss_of)
    random = torch.Generator().manual_seed(1234 + rank)
    seconds, losses = [], []
    for _ in range(a.warmup + a.steps):
        tokens = torch.randint(0, a.vocab, (a.batch, a.seq + 1), generator=random).to(a.device)
        if on_gpu:
            torch.cuda.synchronize()
        start = time.time()
        for _ in range(a.accumulate):
            loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
            (loss / a.accumulate).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.time() - start)
        if len(seconds) == 1:
            first = time.time() - began
    step = statistics.median(seconds[a.warmup :])
    # The highest amount allocated on a GPU; on a CPU, what the process held.
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tokens_a_step = a.batch * a.seq * a.accumulate * world
    # As fsdp counts: six operations a parameter and token without an untied embedding, causal attention once.
    parameters = sum(p.numel() for p in model.parameters()) - (a.vocab * a.dim if a.untied else 0)
    operations = (6 * parameters + 6 * a.layers * a.seq * a.dim) * tokens_a_step / world
    result = dict(
        ms=round(step * 1e3, 2),
        ms_best=round(min(seconds[a.warmup :]) * 1e3, 2),
        tok_s=round(tokens_a_step / step),
        tflops=round(operations / step / 1e12, 4),
        peak_gb=round(peak / 2**30, 2),
        first_step_s=round(first, 2),
        loss=[round(x, 4) for x in losses[:3]],
    )
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
