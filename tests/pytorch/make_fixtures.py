"""Writes what `make test` reads of PyTorch without having it: files of torch.save and a checkpoint of 2 ranks
(tests/ckpt/fixtures/pytorch), and pickles, most of them hostile (tests/fuzz/corpus/pickle: names beginning with
"refused" must be refused, "accepted" must be read). Run once and kept. usage: make_fixtures.py pickles|torch|trainers|checkpoint"""

import os
import pickle
import struct
import sys
from collections import OrderedDict

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

P2, STOP = b"\x80\x02", b"."
MARK_OF_HARM = "fsdp-was-here"


class Reduce:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def text(s):
    return b"X" + struct.pack("<I", len(s)) + s.encode()


def pickles():
    import subprocess

    harm = f"touch {MARK_OF_HARM}"
    empty_dict = b"ccollections\nOrderedDict\n)R"
    return {
        # calls
        "refused-os-system": P2 + b"cos\nsystem\n" + text(harm) + b"\x85R" + STOP,
        "refused-posix-system-4": pickle.dumps(Reduce(os.system, harm), 4),
        "refused-eval-5": pickle.dumps(Reduce(eval, f"open('{MARK_OF_HARM}','w')"), 5),
        "refused-exec-2": pickle.dumps(Reduce(exec, "import os"), 2),
        "refused-popen": pickle.dumps(Reduce(subprocess.Popen, ["touch", MARK_OF_HARM]), 3),
        "refused-getattr": pickle.dumps(Reduce(getattr, {}, "x"), 4),
        "refused-import": pickle.dumps(Reduce(__import__, "os"), 4),
        "refused-runpy": P2 + b"crunpy\n_run_code\n" + text(harm) + b"}\x86R" + STOP,
        "refused-torch-load": P2 + b"ctorch\nload\n" + text("/etc/passwd") + b"\x85R" + STOP,
        "refused-torch-hub": P2 + b"ctorch.hub\nload\n" + text("evil/repo") + b"\x85R" + STOP,
        "refused-numpy-fromfile": P2 + b"cnumpy\nfromfile\n" + text("/etc/passwd") + b"\x85R" + STOP,
        "refused-inst": b"(" + b"S'" + harm.encode() + b"'\nios\nsystem\n.",
        "refused-inst-2": P2 + b"(" + text(harm) + b"ios\nsystem\n.",
        "refused-obj": P2 + b"(cos\nsystem\n" + text(harm) + b"o.",
        "refused-newobj-ex": pickle.PROTO + b"\x04cos\nsystem\n" + text(harm) + b"\x85}\x92.",
        "refused-extension": P2 + b"\x82\x01.",
        "refused-extension-4": P2 + b"\x84\x01\x00\x00\x00.",
        "refused-dotted-name": pickle.PROTO + b"\x04" + text("torch._utils") + text("os.system") + b"\x93.",
        "refused-nested-name": pickle.PROTO + b"\x04" + text("torch") + text("_utils.os.system") + b"\x93.",
        "refused-joined-name": P2 + b"ctorch._utils._rebuild_tensor_v2\nos\n.",
        "refused-name-that-is-no-text": pickle.PROTO + b"\x04K\x01K\x02\x93.",
        "refused-name-from-bytes": pickle.PROTO + b"\x04C\x02osC\x06system\x93.",
        "refused-name-without-end": P2 + b"cos",
        "refused-long-name": P2 + b"c" + b"a" * 5000 + b"\nb\n.",
        "refused-call-of-a-value": P2 + b"})R.",
        "refused-call-of-an-element-type": P2 + b"ctorch\nfloat32\n)R.",
        "refused-call-of-a-call": P2 + b"ctorch\nSize\n)\x85R)R.",
        "refused-call-without-a-tuple": P2 + b"ctorch\nSize\n]R.",
        "refused-dict-of-numbers": P2 + b"ccollections\nOrderedDict\n]K\x01a\x85R.",
        # build
        "refused-build-on-a-size": P2 + b"ctorch\nSize\n)\x85R}b.",
        "refused-build-on-a-class": P2 + b"ctorch.distributed.checkpoint.metadata\nMetadata\n}" + text("x") + b"cos\nsystem\nsb.",
        "refused-build-on-a-name": P2 + b"ccollections\nOrderedDict\n}b.",
        "refused-build-on-a-list": P2 + b"]}b.",
        "refused-build-twice": P2 + b"ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}b}b.",
        "refused-build-setstate": P2 + empty_dict + text("__setstate__") + b"cos\nsystem\ns.",
        # memo
        "refused-memo-far": P2 + b"Nr\xff\xff\xff\xff.",
        "refused-memo-unmade": P2 + b"h\x07.",
        "refused-memo-unmade-long": P2 + b"j\xff\xff\xff\x7f.",
        "refused-memo-of-nothing": P2 + b"q\x00.",
        "refused-memo-name": P2 + b"X\x02\x00\x00\x00osq\x00X\x06\x00\x00\x00systemq\x01h\x00h\x01\x93.",
        "refused-memo-text-put": P2 + b"Np0\n.",
        # stack and marks
        "refused-underflow": P2 + b"R.",
        "refused-pop-below-a-mark": P2 + b"K\x01(0K\x02\x860000.",
        "refused-tuple-across-a-mark": P2 + b"K\x01(K\x02\x86.",
        "refused-without-mark": P2 + b"K\x01t.",
        "refused-open-mark": P2 + b"(K\x01.",
        "refused-two-results": P2 + b"K\x01K\x02.",
        "refused-nothing": P2 + STOP,
        "refused-empty": b"",
        "refused-without-stop": P2 + b"K\x01",
        "refused-many-marks": P2 + b"(" * 5000 + b".",
        "refused-append-to-a-number": P2 + b"K\x01K\x02a.",
        "refused-append-to-a-tuple": P2 + b")K\x02a.",
        "refused-items-of-a-list": P2 + b"]K\x01K\x02s.",
        "refused-odd-items": P2 + b"}(K\x01u.",
        "refused-odd-dict": P2 + b"(K\x01d.",
        # counts
        "refused-huge-text": P2 + b"X\xff\xff\xff\xff" + b"a" * 8 + STOP,
        "refused-huge-text-8": pickle.PROTO + b"\x04\x8d" + b"\xff" * 8 + b"a" * 8 + STOP,
        "refused-huge-bytes-8": pickle.PROTO + b"\x04\x8e" + b"\xff" * 7 + b"\x7f" + b"a" * 8 + STOP,
        "refused-huge-bytearray": pickle.PROTO + b"\x05\x96" + b"\xff" * 8 + STOP,
        "refused-huge-number": P2 + b"\x8b\xff\xff\xff\x7f" + b"a" * 20 + STOP,
        "refused-wide-number": P2 + b"\x8a\x41" + b"\x01" * 65 + STOP,
        "refused-huge-frame": pickle.PROTO + b"\x04\x95" + b"\xff" * 8 + b"N.",
        "refused-nul-in-a-text": P2 + b"X\x03\x00\x00\x00a\x00b.",
        # other protocols and opcodes
        "refused-protocol-0": pickle.dumps({"a": 1}, 0),
        "refused-protocol-1": pickle.PROTO + b"\x01N.",
        "refused-protocol-6": pickle.PROTO + b"\x06N.",
        "refused-persistent-text": P2 + b"Pstorage\n.",
        "refused-buffer": pickle.PROTO + b"\x05\x97.",
        "refused-unknown-opcode": P2 + b"\xff.",
        # what must be read
        "accepted-2": pickle.dumps(OrderedDict(a=1, b=[1.5, None, True, "é", (1, 2, 3, 4)]), 2),
        "accepted-4": pickle.dumps({"a": {1, 2}, "b": frozenset([3]), "c": b"bytes", "d": -5, "e": 2**40, "f": -(2**62)}, 4),
        "accepted-5": pickle.dumps({"a": bytearray(b"x" * 300), "b": "y" * 300, "c": list(range(300))}, 5),
        "accepted-wide-numbers": pickle.dumps([2**63, 2**64 - 1, -(2**63) - 1, 2**200, -(2**500)], 2),
        "accepted-bytes-2": pickle.dumps({"a": b"\xff", "b": bytearray(b"x\x80"), "c": {1}, "d": frozenset([2]), "e": 1 + 2j}, 2),
        "accepted-itself": P2 + b"]q\x00h\x00a.",
        "accepted-laughs": P2 + b"]q\x00" + b"".join(b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(200)) + b"0" * 200 + STOP,
        "accepted-deep": P2 + b"N" + b"\x85" * 5000 + STOP,
        "accepted-pop-mark": P2 + b"N(K\x01K\x021.",
        "accepted-dup": P2 + b"]K\x012\x862\x86a.",
    }


def write_pickles():
    folder = os.path.join(root, "fuzz", "corpus", "pickle")
    os.makedirs(folder, exist_ok=True)
    for name, data in pickles().items():
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)


def write_torch():
    import torch
    from safetensors.torch import save_file

    folder = os.path.join(root, "ckpt", "fixtures", "pytorch")
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(1)
    draw, shared = torch.randn, torch.randn(4, 6)
    tensors = {
        "embed.weight": shared,
        "head.weight": shared,  # tied: one storage
        "transposed": draw(3, 5).t(),
        "window": draw(10, 8)[2:5, 1:6],
        "expanded": draw(1, 3).expand(4, 3),
        "permuted": draw(2, 3, 4).permute(2, 0, 1),
        "every_second": draw(11)[::2],
        "bf16": draw(7).bfloat16(),
        "fp16": draw(2, 2, 2).half(),
        "fp64": draw(3).double(),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "parameter": torch.nn.Parameter(draw(3, 3)),
    }
    wrapped = OrderedDict(("module._orig_mod." + name, tensor) for name, tensor in tensors.items())
    path = lambda name: os.path.join(folder, name)
    torch.save(tensors, path("plain.pt"))
    torch.save(tensors, path("stream.pt"), _use_new_zipfile_serialization=False)
    torch.save({"model": wrapped, "optimizer": {"state": {}}, "epoch": 3}, path("training.pth"), pickle_protocol=5)
    torch.save(torch.nn.Linear(2, 2), path("module.pt"))
    whole = {"int64": torch.arange(3), "int8": torch.ones(2, dtype=torch.int8), "bool": torch.ones(2, dtype=torch.bool),
             "uint16": torch.zeros(3, dtype=torch.uint16), "fp8": torch.zeros(2).to(torch.float8_e4m3fn)}
    torch.save(whole, path("types.pt"))
    torch.save({"weight": draw(3), "num_batches_tracked": torch.tensor(7)}, path("counted.pt"))
    save_file({n: t.detach().contiguous().clone() for n, t in tensors.items()}, path("expected.safetensors"))


def write_trainers():
    """What trainers save: the tensors of expected.safetensors among all kinds of other things; and a negative view."""
    import torch
    from collections import Counter
    from safetensors.torch import load_file

    folder = os.path.join(root, "ckpt", "fixtures", "pytorch")
    tensors = load_file(os.path.join(folder, "expected.safetensors"))
    others = {"best_val_loss": torch.tensor(1.5), "rng": torch.arange(16, dtype=torch.uint8), "seed": 2**63 + 5, "state": 2**120,
              "seen": {1, 2}, "words": Counter("aab"), "raw": b"\xff", "room": bytearray(b"x\x80"), "z": 1 + 2j}
    torch.save(others | {"model": tensors}, os.path.join(folder, "trainer.pt"))
    torch.save({"kept": torch.ones(2), "turned": torch._neg_view(torch.ones(3))}, os.path.join(folder, "negated.pt"))


def write_checkpoint(rank, folder):
    """Two parameters under FSDP2 with AdamW, and a tensor that is cut along its columns."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29811", RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3, bias=False), torch.nn.LayerNorm(3, bias=False))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    for _ in range(3):
        (model(torch.randn(2, 5)) ** 2).sum().backward()
        optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    weights["columns"] = distribute_tensor(torch.arange(24.0).view(4, 6), mesh, [Shard(1)])
    dcp.save({"model": weights, "optim": state}, checkpoint_id=os.path.join(folder, "dcp"))
    whole = {"parameter/" + n: t.full_tensor() for n, t in weights.items()}
    for name, moments in state["state"].items():
        whole["moment1/" + name] = moments["exp_avg"].full_tensor()
        whole["moment2/" + name] = moments["exp_avg_sq"].full_tensor()
    if rank == 0:
        save_file(whole, os.path.join(folder, "dcp-expected.safetensors"))
    dist.destroy_process_group()


def write_checkpoints():
    import torch

    torch.multiprocessing.spawn(write_checkpoint, (os.path.join(root, "ckpt", "fixtures", "pytorch"),), nprocs=2)


if __name__ == "__main__":
    {"pickles": write_pickles, "torch": write_torch, "trainers": write_trainers, "checkpoint": write_checkpoints}[sys.argv[1]]()
