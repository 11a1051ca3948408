"""Adapters of peft and ours, both ways, for scripts/test-transformers. Small random models of several families.

make OUT        OUT/name: a base model's folder, adapter/ as peft writes it with random values, and io.safetensors of both
                together in the form of tests/golden; OUT/list has their names and kinds
compare OUT     OUT/name.adapter, which we trained beside OUT/name, opens in peft, and gives the logits of OUT/name.merged,
                which we exported, in transformers
"""
import sys
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, logging
from configurations import T5S, VOCABULARY, configs, usual

logging.disable_progress_bar()
logging.set_verbosity(logging.CRITICAL)
torch.set_num_threads(2)

# name, family, what of LoraConfig differs
cases = [("llama", "llama", {}),
         ("llama-all", "llama", dict(target_modules="all-linear", r=3, lora_alpha=7)),
         ("llama-regex", "llama", dict(target_modules=r".*\.(k_proj|gate_proj)")),
         ("qwen2-rslora", "qwen2", dict(use_rslora=True, r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])),
         ("qwen3", "qwen3", dict(target_modules=["q_proj", "v_proj", "up_proj"])),
         ("mistral", "mistral", dict(target_modules=["down_proj"])),
         ("gemma3", "gemma3", dict(target_modules="all-linear")),
         ("gpt2", "gpt2", dict(target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)),
         ("phi3", "phi3", dict(target_modules=["qkv_proj", "gate_up_proj"])),
         ("t5", "t5", dict(target_modules=["q", "v", "wo"])),
         ("mt5", "mt5", dict(target_modules="all-linear"))]


def opener(kind):
    return AutoModelForSeq2SeqLM if kind in T5S else AutoModelForCausalLM


def inputs(kind):
    ids = torch.randint(3, VOCABULARY, (2, 24))
    if kind not in T5S:
        return {"input_ids": ids, "labels": ids}
    mask = torch.ones_like(ids)
    mask[1, 17:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(3, VOCABULARY, (2, 9))}


def make(out):
    with open(f"{out}/list", "w") as names:
        for name, kind, options in cases:
            torch.manual_seed(3)
            folder = f"{out}/{name}"
            config = configs[kind](**usual[kind])
            opener(kind).from_config(config).save_pretrained(folder)
            base = opener(kind).from_pretrained(folder, dtype=torch.float64)
            task = "SEQ_2_SEQ_LM" if kind in T5S else "CAUSAL_LM"
            model = get_peft_model(base, LoraConfig(**{"task_type": task, "r": 4, "lora_alpha": 8, "lora_dropout": 0.0, **options}))
            with torch.no_grad():
                for key, p in model.named_parameters():
                    if "lora_" in key: # as stored
                        p.copy_((0.1 * torch.randn(p.shape)).float().double())
            model.eval()
            model.float().save_pretrained(f"{folder}/adapter")
            model.double()
            io = inputs(kind)
            result = model(**io)
            result.loss.backward()
            tensors = {key: value for key, value in io.items() if key != "labels" or kind in T5S}
            tensors |= {"logits": result.logits.float(), "loss": result.loss.float()}
            tensors |= {"grad." + key: p.grad.float() for key, p in model.named_parameters() if p.requires_grad}
            save_file({key: t.detach().contiguous() for key, t in tensors.items()}, f"{folder}/io.safetensors")
            print(name, kind, file=names)


def compare(out):
    for line in open(f"{out}/list"):
        name, kind = line.split()
        torch.manual_seed(5)
        io = inputs(kind)
        base = opener(kind).from_pretrained(f"{out}/{name}", dtype=torch.float64)
        with torch.no_grad():
            before = base.eval()(**io).logits
            ours = PeftModel.from_pretrained(base, f"{out}/{name}.adapter").eval()(**io).logits
            merged = opener(kind).from_pretrained(f"{out}/{name}.merged", dtype=torch.float64).eval()(**io).logits
        error = ((ours - merged).norm() / merged.norm()).item()
        moved = ((ours - before).norm() / before.norm()).item()
        assert error < 1e-5 and moved > 1e-4, f"{name}: peft's logits and the merged model's differ by {error}, moved {moved}"
    print("adapters trained here open in peft, with the logits of the merged export")


globals()[sys.argv[1]](sys.argv[2])
