"""Small random models over the fields of config.json, as transformers makes and reads them, for scripts/test-transformers.

make OUT        a folder for every configuration: config.json, the weights and, where ours should agree, io.safetensors
                (the form that tests/golden/README.md describes); OUT/list says for each "name expected kind"
compare OUT     every OUT/name.export, which we wrote after a step that changed nothing, is the model of OUT/name: the same
                logits, also for a reader that knows only the older or the newer form of rope, and the same configuration
"""
import json, os, sys
import torch
from safetensors.torch import load_file, save_file
from transformers import logging
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers import T5Config, T5ForConditionalGeneration

logging.disable_progress_bar()
logging.set_verbosity(logging.CRITICAL)
torch.set_num_threads(2)

WIDTH, TARGET, VOCABULARY = 24, 9, 272
models = {"llama": (LlamaConfig, LlamaForCausalLM), "mistral": (MistralConfig, MistralForCausalLM),
          "t5": (T5Config, T5ForConditionalGeneration)}
decoder = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=64)
t5 = dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
          decoder_start_token_id=0)
llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)

cases = []


def case(name, kind, expect="equal", edit=None, weights=None, dtype=torch.float32, parts=False, **config):
    """`edit` changes config.json after it was saved, a dict for new values or a function; `weights` the tensors."""
    if isinstance(edit, dict):
        values = edit
        edit = lambda c: c.update(values)
    cases.append((f"{len(cases):03d}-{kind}-{name}", kind, expect, edit, weights, dtype, parts, config))


def without(*keys, **values):
    def edit(c):
        for key in keys:
            c.pop(key, None)
        c.update(values)
    return edit


def head(tensors):
    tensors["lm_head.weight"] = 0.1 * torch.randn(VOCABULARY, 32)


def same_head(embedding):
    return lambda tensors: tensors.update({"lm_head.weight": tensors[embedding].clone()})


def describe_decoders():
    for kind in ("llama", "mistral"):
        case("plain", kind)
        for heads in (1, 2, 4):
            case(f"kv{heads}", kind, num_key_value_heads=heads)
        for width in (2, 8, 16, 64):
            case(f"head_dim{width}", kind, head_dim=width)
        case("head_dim null", kind, edit={"head_dim": None})
        case("wide feed-forward", kind, intermediate_size=130)
        case("odd vocabulary", kind, vocab_size=273)
        case("one layer", kind, num_hidden_layers=1)
        case("tied", kind, tie_word_embeddings=True)
        case("tied, the head repeated", kind, tie_word_embeddings=True, weights=same_head("model.embed_tokens.weight"))
        case("tied, another head", kind, tie_word_embeddings=True, weights=head)
        case("eps", kind, rms_norm_eps=1e-2)
        case("eps absent", kind, edit=without("rms_norm_eps"))
        case("swish", kind, hidden_act="swish")
        case("gelu", kind, "refused", hidden_act="gelu")
        case("relu", kind, "refused", hidden_act="relu")
        case("dropout", kind, "refused", attention_dropout=0.1)
        case("dropout 0", kind, edit={"attention_dropout": 0})
        case("bf16", kind, dtype=torch.bfloat16)
        case("fp16", kind, dtype=torch.float16)
        case("parts", kind, parts=True)
        case("ids", kind, bos_token_id=0, eos_token_id=[1, 2], pad_token_id=2)
        case("unknown field", kind, edit={"of_somebody_else": 3})
        case("theta", kind, rope_parameters=dict(rope_type="default", rope_theta=50.0))
        case("theta outside", kind, edit=without("rope_parameters", rope_theta=50.0))
        case("theta twice", kind, rope_parameters=dict(rope_type="default", rope_theta=50.0), edit={"rope_theta": 7.0})
        case("no rope", kind, edit=without("rope_parameters"))
        case("rope null", kind, edit={"rope_parameters": None, "rope_scaling": None})
        case("linear", kind, rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=100.0))
        case("linear, older", kind, edit=without("rope_parameters", rope_theta=100.0,
                                                 rope_scaling=dict(type="linear", factor=4.0)))
        case("linear without factor", kind, "refused", edit={"rope_parameters": dict(rope_type="linear", rope_theta=1e4)})
        case("llama3", kind, rope_parameters=dict(llama3, rope_theta=100.0))
        case("llama3, older", kind, edit=without("rope_parameters", rope_theta=100.0, rope_scaling=llama3))
        case("llama3, other factors", kind,
             rope_parameters=dict(llama3, rope_theta=500.0, factor=2.5, low_freq_factor=0.5, high_freq_factor=8.0))
        case("both forms", kind, rope_parameters=dict(llama3, rope_theta=100.0),
             edit={"rope_scaling": dict(rope_type="linear", factor=4.0)})
        case("both forms and theta", kind, rope_parameters=dict(llama3, rope_theta=100.0),
             edit={"rope_scaling": dict(rope_type="linear", factor=4.0), "rope_theta": 30.0})
        case("empty older form", kind, rope_parameters=dict(llama3, rope_theta=100.0), edit={"rope_scaling": {}})
        for scaling in (dict(rope_type="dynamic", factor=2.0), dict(rope_type="yarn", factor=2.0)):
            case(scaling["rope_type"], kind, "refused", edit={"rope_parameters": dict(scaling, rope_theta=1e4)})
        case("partial rotary", kind, "refused", edit={"partial_rotary_factor": 0.5})
        case("quantized", kind, "refused", edit={"quantization_config": {"quant_method": "bitsandbytes"}})
        case("layer types", kind, "refused", edit={"layer_types": ["sliding_attention", "full_attention"]})
    for attention in (False, True):
        for mlp in (False, True):
            case(f"biases {attention} {mlp}", "llama", attention_bias=attention, mlp_bias=mlp)
    case("kv absent", "llama", num_key_value_heads=4, edit=without("num_key_value_heads"))
    case("tensor parallel", "llama", pretraining_tp=2)
    case("window of others", "llama", edit={"sliding_window": 8})
    case("kv absent", "mistral", hidden_size=64, num_attention_heads=16, num_key_value_heads=8,
         edit=without("num_key_value_heads"))
    case("bias", "mistral", "refused", edit={"attention_bias": True})
    for window in (1, 8, WIDTH - 1):
        case(f"window {window}", "mistral", "refused", sliding_window=window)
    for window in (WIDTH, 100, None):
        case(f"window {window}", "mistral", sliding_window=window)
    case("window absent", "mistral", edit=without("sliding_window"))


def describe_t5():
    for gated in (False, True):
        form = "gated-gelu" if gated else "relu"
        case(f"{form}", "t5", feed_forward_proj=form)
        case(f"{form}, the form alone", "t5", feed_forward_proj=form, edit=without("dense_act_fn", "is_gated_act"))
        case(f"{form}, unscaled", "t5", feed_forward_proj=form, tie_word_embeddings=False)
        case(f"{form}, v1.1 of version 5", "t5", feed_forward_proj=form, tie_word_embeddings=False, weights=head)
        case(f"{form}, v1.1 of version 4", "t5", feed_forward_proj=form, tie_word_embeddings=False, weights=head,
             edit=without("scale_decoder_outputs", tie_word_embeddings=False))
        case(f"{form}, another head", "t5", feed_forward_proj=form, weights=head)
        case(f"{form}, the head repeated", "t5", feed_forward_proj=form, weights=same_head("shared.weight"))
        case(f"{form}, embeddings repeated", "t5", feed_forward_proj=form, weights=lambda w: w.update(
            {f"{side}.embed_tokens.weight": w["shared.weight"].clone() for side in ("encoder", "decoder")}))
        case(f"{form}, other embeddings", "t5", "refused", feed_forward_proj=form, weights=lambda w: w.update(
            {"encoder.embed_tokens.weight": torch.randn_like(w["shared.weight"])}))
        case(f"{form}, bf16", "t5", feed_forward_proj=form, dtype=torch.bfloat16)
    case("parts", "t5", parts=True)
    case("decoder layers", "t5", num_decoder_layers=3)
    case("decoder layers null", "t5", edit={"num_decoder_layers": None})
    case("wide heads", "t5", d_kv=16)
    case("buckets", "t5", relative_attention_num_buckets=8, relative_attention_max_distance=12)
    case("buckets absent", "t5", edit=without("relative_attention_num_buckets", "relative_attention_max_distance"))
    case("eps", "t5", layer_norm_epsilon=1e-2)
    case("dropout", "t5", dropout_rate=0.3)
    case("start", "t5", decoder_start_token_id=7)
    case("start and padding", "t5", decoder_start_token_id=7, pad_token_id=2)
    case("tie null", "t5", edit={"tie_word_embeddings": None})
    case("scaled, another head", "t5", weights=head, edit={"scale_decoder_outputs": True, "tie_word_embeddings": False})
    case("other names", "t5", edit={"hidden_size": 32, "num_attention_heads": 4})
    case("other names disagree", "t5", "refused", edit={"hidden_size": 64})
    case("another function", "t5", "refused", edit={"dense_act_fn": "gelu_new"})
    case("another gate", "t5", "refused", edit={"is_gated_act": True})
    for form in ("gelu", "gated-silu", "gated-relu", "silu"):
        case(form, "t5", "refused", feed_forward_proj=form)
    case("both sides tied", "t5", "refused", edit={"tie_encoder_decoder": True})
    case("pruned", "t5", "refused", edit={"pruned_heads": {"0": [1]}})


def inputs(config, generator):
    ids = torch.randint(3, config.vocab_size, (2, WIDTH), generator=generator)
    if config.model_type != "t5":
        return {"input_ids": ids, "labels": ids}
    mask = torch.ones_like(ids)
    mask[1, WIDTH - 7:] = 0
    labels = torch.randint(3, config.vocab_size, (2, TARGET), generator=generator)
    labels[0, TARGET - 3:] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def load(folder):
    kind = AutoConfig.from_pretrained(folder).model_type
    return models[kind][1].from_pretrained(folder, dtype=torch.float64).eval()


def refer(folder, generator):
    model = load(folder)
    io = inputs(model.config, generator)
    out = model(**io)
    out.loss.backward()
    if model.config.model_type != "t5":
        del io["labels"]
    io |= {"logits": out.logits.float(), "loss": out.loss.float()}
    io |= {"grad." + name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
    save_file({name: t.detach().contiguous() for name, t in io.items()}, folder + "/io.safetensors")


def make(out):
    generator = torch.Generator().manual_seed(3)
    lines = []
    for name, kind, expect, edit, weights, dtype, parts, config in cases:
        folder = os.path.join(out, name.replace(" ", "_").replace(",", ""))
        torch.manual_seed(len(lines))
        make_config, make_model = models[kind]
        model = make_model(make_config(**((t5 if kind == "t5" else decoder) | config)))
        with torch.no_grad():
            for p in model.parameters():  # norms and biases that are not one and zero
                if p.dim() == 1:
                    p.add_(0.3 * torch.randn_like(p))
        model.to(dtype).save_pretrained(folder, **({"max_shard_size": "20KB"} if parts else {}))
        if weights:
            tensors = load_file(folder + "/model.safetensors")
            weights(tensors)
            save_file(tensors, folder + "/model.safetensors", metadata={"format": "pt"})
        if edit:
            with open(folder + "/config.json") as f:
                c = json.load(f)
            edit(c)
            with open(folder + "/config.json", "w") as f:
                json.dump(c, f)
        try:
            refer(folder, generator)
        except Exception as e:  # of what we refuse, transformers may read some and not others
            if expect == "equal":
                sys.exit(f"{name}: transformers does not read it: {e}")
        lines.append(f"{os.path.basename(folder)} {expect} {kind}\n")
    with open(out + "/list", "w") as f:
        f.writelines(lines)


def logits_of(folder, io):
    given = {name: io[name] for name in ("input_ids", "attention_mask", "labels") if name in io}
    with torch.no_grad():
        return load(folder)(**given).logits


# What an export says in its own way: the type of its weights, both forms of rope, what its weights are tied to.
OURS = {"dtype", "torch_dtype", "rope_theta", "rope_scaling", "rope_parameters", "tie_word_embeddings",
        "scale_decoder_outputs"}


def compare_one(source, export):
    with open(source + "/config.json") as f:
        before = json.load(f)
    with open(export + "/config.json") as f:
        after = json.load(f)
    for key in (before.keys() | after.keys()) - OURS:
        if before.get(key) != after.get(key):
            return f"{key} is {after.get(key)} instead of {before.get(key)}"
    if after["dtype"] != "float32" or after["torch_dtype"] != "float32":
        return "the type of the weights is not said as it is"
    io = load_file(source + "/io.safetensors")
    forms = [()] if before["model_type"] == "t5" else [(), ("rope_parameters",), ("rope_scaling", "rope_theta")]
    for left_out in forms:
        c = {key: value for key, value in after.items() if key not in left_out}
        with open(export + "/config.json", "w") as f:
            json.dump(c, f)
        logits = logits_of(export, io)
        error = ((logits - io["logits"]).norm() / io["logits"].norm()).item()
        if not error < 1e-6:
            return f"logits are off by {error:.2g}" + (f" without {' and '.join(left_out)}" if left_out else "")
    return None


def compare(out):
    failed = n = 0
    with open(out + "/list") as f:
        names = [line.split()[0] for line in f if line.split()[1] == "equal"]
    for name in names:
        complaint = compare_one(f"{out}/{name}", f"{out}/{name}.export")
        n += 1
        if complaint:
            failed += 1
            print(f"{name}: {complaint}")
    print(f"{n} exports opened in transformers, {failed} are not the model that they came from")
    sys.exit(failed > 0)


describe_decoders()
describe_t5()
{"make": make, "compare": compare}[sys.argv[1]](sys.argv[2])
