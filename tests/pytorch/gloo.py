"""A PyTorch program under `fsdp run`: two ranks sum over gloo. The first attempt of rank 1 fails, so that both are started again."""
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(total)
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"sum {total.item()} in attempt {attempt}", flush=True)
if attempt == "0" and dist.get_rank() == 1:
    sys.exit(3)
dist.barrier()
dist.destroy_process_group()
