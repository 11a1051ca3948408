"""Ten steps of torch.optim.Muon, and of transformers' Adafactor with its variants, from given values and gradients:
tests/golden/optimizers/steps.safetensors, which tests/training/optimizers/test_golden_steps.c follows. Run once and kept.
usage: optimizers.py FILE (with torch 2.9 or later, transformers 5, safetensors)"""

import sys

import torch
from safetensors.torch import save_file
from transformers.optimization import Adafactor

STEPS = 10
SHAPES = {"l0.weight": (12, 20), "l0.bias": (12,), "l1.weight": (24, 8), "l1.bias": (24,), "l2.weight": (16, 16), "l2.bias": (16,)}
RATE, DECAY = 0.02, 0.1

ADAFACTOR = {
    "plain": dict(lr=RATE, relative_step=False, scale_parameter=False, warmup_init=False),
    "scale": dict(lr=RATE, relative_step=False, scale_parameter=True, warmup_init=False),
    "relative": dict(lr=None, relative_step=True, scale_parameter=False, warmup_init=False),
    "relative_scale": dict(lr=None, relative_step=True, scale_parameter=True, warmup_init=False),
    "warmup": dict(lr=None, relative_step=True, scale_parameter=False, warmup_init=True),
    "warmup_scale": dict(lr=None, relative_step=True, scale_parameter=True, warmup_init=True),
    "clip_decay": dict(lr=RATE, relative_step=False, scale_parameter=False, warmup_init=False, clip_threshold=0.3, weight_decay=DECAY,
                       decay_rate=-0.6),
}


def drawn():
    """Values, and gradients that drift: singular values of their mean lie apart, and steps differ in size."""
    torch.manual_seed(5)
    start = {name: torch.randn(shape) * 0.3 for name, shape in SHAPES.items()}
    mean = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    gradients = [{name: (mean[name] + torch.randn(shape)) * 0.1 * (1 + step % 3) for name, shape in SHAPES.items()} for step in range(STEPS)]
    return start, gradients


def follow(start, gradients, make):
    """The values after each step."""
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    optimizers, after = make(parameters), []
    for step in gradients:
        for name, gradient in step.items():
            parameters[name].grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
        after.append({name: p.detach().clone() for name, p in parameters.items()})
    return after


def adafactor(options):
    def make(parameters):
        # Vectors do not decay here.
        decay = options.get("weight_decay", 0.0)
        matrices, vectors = [[p for p in parameters.values() if (p.dim() > 1) == wide] for wide in (True, False)]
        plain = dict(options, weight_decay=0.0)
        return [Adafactor(matrices, **dict(plain, weight_decay=decay)), Adafactor(vectors, **plain)]
    return make


def muon(parameters):
    matrices, vectors = [[p for p in parameters.values() if (p.dim() > 1) == wide] for wide in (True, False)]
    return [torch.optim.Muon(matrices, lr=RATE, weight_decay=DECAY, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(vectors, lr=RATE, weight_decay=0.0)]


start, gradients = drawn()
tensors = {f"start.{name}": value for name, value in start.items()}
for step, of_step in enumerate(gradients, 1):
    tensors.update({f"gradient.{step}.{name}": value for name, value in of_step.items()})
for variant, make in [("muon", muon)] + [("adafactor_" + name, adafactor(options)) for name, options in ADAFACTOR.items()]:
    for step, values in enumerate(follow(start, gradients, make), 1):
        if step in (1, STEPS):
            tensors.update({f"{variant}.{step}.{name}": value for name, value in values.items()})
save_file(tensors, sys.argv[1])
