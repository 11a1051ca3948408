"""Small random models over the fields of config.json, as transformers makes and reads them, for scripts/test-transformers.
Fixed cases for what each field does, then models of every family drawn from a seed, and ten steps of training of each.

make OUT K N    a folder for every N-th configuration from number K on: config.json, the weights and, where ours should agree, io.safetensors
                (the form that tests/golden/README.md describes); OUT/list says for each "name expected kind"
compare OUT     every OUT/name.export, which we wrote after a step that changed nothing, is the model of OUT/name: the same
                logits, also for a reader that knows only the older or the newer form of rope, and the same configuration
"""
import json, os, random, sys
import torch
from safetensors.torch import load_file, save_file
from transformers import logging
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers import Gemma3TextConfig, GPT2Config, LlamaConfig, MistralConfig, MT5Config, Phi3Config, Qwen2Config
from transformers import Qwen3Config, T5Config, UMT5Config

logging.disable_progress_bar()
logging.set_verbosity(logging.CRITICAL)
torch.set_num_threads(1)

WIDTH, TARGET, VOCABULARY = 24, 9, 272
configs = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config, "gemma3": Gemma3TextConfig,
           "gpt2": GPT2Config, "phi3": Phi3Config, "t5": T5Config, "mt5": MT5Config, "umt5": UMT5Config}
T5S = ("t5", "mt5", "umt5")
DECODERS = [kind for kind in configs if kind not in T5S]
decoder = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=64)
ids = dict(bos_token_id=1, eos_token_id=2, pad_token_id=None)
gpt2 = dict(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            **ids)
t5 = dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
          decoder_start_token_id=0)
llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)

usual = {kind: gpt2 if kind == "gpt2" else t5 if kind in T5S else decoder for kind in configs}
usual["gemma3"] = decoder | dict(head_dim=8, query_pre_attn_scalar=8, sliding_window=8, num_hidden_layers=6, **ids)
usual["qwen3"] = decoder | dict(head_dim=16)
usual["phi3"] = decoder | ids
yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)

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
        case("dropout", kind, attention_dropout=0.1)
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
        case("dynamic", kind, rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=100.0))
        case("dynamic, beyond", kind, max_position_embeddings=16,
             rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=100.0))
        case("yarn", kind, rope_parameters=dict(yarn, rope_theta=100.0))
        case("yarn, older", kind, edit=without("rope_parameters", rope_theta=100.0, rope_scaling=yarn))
        case("yarn, other bounds", kind,
             rope_parameters=dict(yarn, rope_theta=500.0, beta_fast=8.0, beta_slow=2.0, truncate=False))
        case("yarn, attention factor", kind, rope_parameters=dict(yarn, rope_theta=100.0, attention_factor=0.7))
        case("yarn, mscale", kind, rope_parameters=dict(yarn, rope_theta=100.0, mscale=0.8, mscale_all_dim=1.3))
        case("llama3, no training length", kind,
             edit={"rope_parameters": {k: v for k, v in dict(llama3, rope_theta=100.0).items() if k[:8] != "original"}})
        case("longrope", kind, "refused", edit={"rope_parameters": dict(rope_type="longrope", factor=2.0, rope_theta=1e4)})
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
    for window in (1, 8, WIDTH - 1, WIDTH, 100, None):
        case(f"window {window}", "mistral", sliding_window=window)
    case("window absent", "mistral", edit=without("sliding_window"))


def without_prefix(prefix):
    def change(tensors):
        for name in [n for n in tensors if n.startswith(prefix)]:
            tensors[name[len(prefix):]] = tensors.pop(name)
    return change


def moved(name, to):
    return lambda tensors: tensors.update({to: tensors.pop(name)})


def extra(name, *shape):
    return lambda tensors: tensors.update({name: torch.randn(*shape)})


def describe_families():
    for kind in ("qwen2", "qwen3"):
        case("windows", kind, use_sliding_window=True, sliding_window=5, max_window_layers=1)
        case("windows of none", kind, use_sliding_window=True, sliding_window=5, max_window_layers=2)
        case("windows listed", kind, use_sliding_window=True, sliding_window=5,
             layer_types=["sliding_attention", "full_attention"])
        case("window not used", kind, sliding_window=5)
        case("yarn", kind, rope_parameters=dict(yarn, rope_theta=100.0))
        case("theta outside", kind, edit=without("rope_parameters", "layer_types", rope_theta=50.0))
        case("gelu", kind, "refused", hidden_act="gelu")
    case("biases", "qwen3", attention_bias=True)
    case("chunked", "qwen3", "refused", edit={"layer_types": ["chunked_attention", "full_attention"]})
    case("pattern", "gemma3", edit=without("layer_types"))
    case("another pattern", "gemma3", sliding_window_pattern=2)
    case("all windows", "gemma3", layer_types=["sliding_attention"] * 6)
    case("no window", "gemma3", layer_types=["full_attention"] * 6)
    case("older form", "gemma3", edit=without("rope_parameters", "layer_types", rope_theta=5000.0, rope_local_base_freq=70.0,
                                              rope_scaling=dict(rope_type="linear", factor=8.0), sliding_window_pattern=3))
    case("biases", "gemma3", attention_bias=True)
    case("wide heads", "gemma3", head_dim=64, query_pre_attn_scalar=100)
    case("untied", "gemma3", tie_word_embeddings=False)
    case("soft cap", "gemma3", "refused", final_logit_softcapping=30.0)
    case("both ways", "gemma3", "refused", edit={"use_bidirectional_attention": True})
    for function in ("gelu_new", "gelu", "relu", "silu", "gelu_pytorch_tanh"):
        case(function, "gpt2", activation_function=function)
    case("quick", "gpt2", "refused", activation_function="quick_gelu")
    case("inner", "gpt2", n_inner=50)
    case("unscaled", "gpt2", scale_attn_weights=False)
    case("scaled by layer", "gpt2", scale_attn_by_inverse_layer_idx=True)
    case("untied", "gpt2", tie_word_embeddings=False)
    case("dropout", "gpt2", resid_pdrop=0.1, embd_pdrop=0.2, attn_pdrop=0.3)
    case("other names", "gpt2", edit={"hidden_size": 32, "num_attention_heads": 4})
    case("other names disagree", "gpt2", "refused", edit={"hidden_size": 64})
    case("window", "phi3", sliding_window=7)
    case("residual dropout", "phi3", resid_pdrop=0.2)
    case("longrope", "phi3", "refused", edit={"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4}})
    case("partial rotary", "phi3", "refused", edit={"partial_rotary_factor": 0.5})
    for kind in ("mt5", "umt5"):
        case("relu", kind, feed_forward_proj="relu")
        case("more decoder layers", kind, num_decoder_layers=3)
    # What published folders hold.
    for kind in DECODERS:
        case("without prefix", kind, weights=without_prefix("transformer." if kind == "gpt2" else "model."))
    case("the head alone", "llama", tie_word_embeddings=True, weights=moved("model.embed_tokens.weight", "lm_head.weight"))
    case("the head alone", "gpt2", weights=moved("transformer.wte.weight", "lm_head.weight"))
    case("frequencies", "llama", weights=extra("model.layers.0.self_attn.rotary_emb.inv_freq", 4))
    case("masks", "gpt2", weights=extra("transformer.h.0.attn.bias", 1, 1, 8, 8))
    case("masks without prefix", "gpt2", weights=lambda w: (extra("transformer.h.1.attn.bias", 1, 1, 8, 8)(w),
                                                            extra("transformer.h.1.attn.masked_bias", 1)(w),
                                                            without_prefix("transformer.")(w)))
    case("version 1.0", "t5", weights=extra("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", 32, 4))
    case("the encoder's embedding alone", "t5", weights=moved("shared.weight", "encoder.embed_tokens.weight"))


def draw_decoder(kind, r):
    """Any shape that the family allows."""
    heads = r.choice([1, 2, 3, 4, 6])
    kv = r.choice([h for h in range(1, heads + 1) if heads % h == 0])
    layers, head_dim = r.randint(1, 7), r.choice([4, 6, 8, 16, 20])
    hidden = heads * r.choice([4, 6, 8, 14])
    common = dict(vocab_size=r.randint(259, 400), initializer_range=r.choice([0.02, 0.1]), tie_word_embeddings=r.random() < 0.5)
    if kind == "gpt2":
        return common | ids | dict(n_embd=hidden, n_layer=layers, n_head=heads, n_positions=r.choice([WIDTH, 64, 100]),
                                   n_inner=r.choice([None, 17, 90]), activation_function=r.choice(["gelu_new", "gelu", "relu"]),
                                   scale_attn_weights=r.random() < 0.8, scale_attn_by_inverse_layer_idx=r.random() < 0.3,
                                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    c = common | dict(hidden_size=hidden, intermediate_size=r.randint(5, 90), num_hidden_layers=layers, num_attention_heads=heads,
                      num_key_value_heads=kv, max_position_embeddings=r.choice([WIDTH, 64, 200]), rms_norm_eps=r.choice([1e-6, 1e-5]))
    if kind in ("qwen3", "gemma3") or (kind != "qwen2" and kind != "phi3" and r.random() < 0.5):
        c |= dict(head_dim=head_dim)
    window = r.choice([1, 2, 7, WIDTH - 1, WIDTH, 90])
    types = [r.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
    if kind in ("mistral", "phi3"):
        c |= dict(sliding_window=r.choice([None, window]))
    if kind in ("qwen2", "qwen3") and r.random() < 0.6:
        c |= dict(use_sliding_window=True, sliding_window=window,
                  **r.choice([dict(max_window_layers=r.randint(0, layers)), dict(layer_types=types)]))
    if kind == "gemma3":
        c |= ids | dict(sliding_window=window, query_pre_attn_scalar=r.choice([8, 13, 64]),
                        **r.choice([{}, dict(layer_types=types), dict(sliding_window_pattern=r.randint(2, 4))]))
    if kind in ("llama", "qwen3", "gemma3"):
        c |= dict(attention_bias=r.random() < 0.4)
    if kind == "llama":
        c |= dict(mlp_bias=r.random() < 0.4)
    theta = r.choice([50.0, 10000.0, 1e6])
    scalings = [dict(rope_type="default"), dict(rope_type="linear", factor=r.uniform(1, 9)),
                dict(rope_type="dynamic", factor=r.uniform(1, 9)), dict(llama3, factor=r.uniform(1, 40)),
                dict(yarn, factor=r.uniform(1, 40), original_max_position_embeddings=r.randint(8, 64))]
    rope = dict(r.choice(scalings[:1] if kind == "phi3" else scalings), rope_theta=theta)
    if kind == "gemma3":
        rope = dict(full_attention=dict(r.choice(scalings[:2]), rope_theta=theta),
                    sliding_attention=dict(rope_type="default", rope_theta=r.choice([10.0, 10000.0])))
    if kind == "phi3":
        c |= ids
    return c | dict(rope_parameters=rope)


def draw_t5(kind, r):
    heads = r.choice([1, 2, 3, 4])
    return dict(vocab_size=r.randint(259, 400), d_model=r.choice([12, 30, 32]), d_kv=r.choice([3, 8, 10]), d_ff=r.randint(5, 80),
                num_layers=r.randint(1, 3), num_decoder_layers=r.randint(1, 3), num_heads=heads, dropout_rate=0.0,
                decoder_start_token_id=r.choice([0, 3]), feed_forward_proj=r.choice(["relu", "gated-gelu"]),
                relative_attention_num_buckets=r.choice([8, 32]), relative_attention_max_distance=r.choice([20, 128]))


def describe_random(n):
    r = random.Random(11)
    for kind in configs:
        case("usual", kind)
        for i in range(n):
            case(f"drawn {i}", kind, **(draw_t5(kind, r) if kind in T5S else draw_decoder(kind, r)))


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


def describe_odd():
    """What nobody would write by hand, and tools do."""
    for kind in [k for k in DECODERS if k != "gpt2"]:
        case("padding", kind, pad_token_id=7)
        case("padding tied", kind, pad_token_id=7, tie_word_embeddings=True)
        case("both directions", kind, "refused", edit={"is_causal": False})
        case("one direction", kind, edit={"is_causal": True})
        case("partial rotary inside", kind, "refused", edit=lambda c: (
            c["rope_parameters"].get("full_attention", c["rope_parameters"]).update(partial_rotary_factor=0.5)))
        case("kept outputs", kind, edit={"output_attentions": True, "output_hidden_states": True, "use_cache": False})
        case("no dropout named", kind, edit=without("attention_dropout"))
        case("eps as a text", kind, "refused", edit={"rms_norm_eps": "1e-6"})
        case("layers as a fraction", kind, "refused", edit={"num_hidden_layers": 1.5})
        case("no layers", kind, "refused", edit={"num_hidden_layers": 0})
        case("heads that do not divide", kind, "refused", edit={"num_key_value_heads": 3})
        case("multiplied", kind, edit={"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.2})
    for kind in ("llama", "mistral", "qwen2", "qwen3"):
        case("theta an integer", kind, edit=without("rope_parameters", rope_theta=500000))
        case("rope of nothing", kind, edit={"rope_parameters": {}})
        case("rope without theta", kind, edit={"rope_parameters": {"rope_type": "default"}, "rope_theta": 77.0})
        case("older default", kind, edit=without("rope_parameters", rope_theta=50.0, rope_scaling={"rope_type": "default"}))
        case("sections", kind, "refused", edit={"rope_parameters": {"rope_type": "mrope", "mrope_section": [2, 1, 1], "rope_theta": 1e4}})
        case("theta 0", kind, "refused", edit=without("rope_parameters", rope_theta=0))
        case("factor as a text", kind, "refused", edit={"rope_parameters": {"rope_type": "linear", "factor": "4", "rope_theta": 1e4}})
        case("negative factor", kind, "refused", edit={"rope_parameters": {"rope_type": "linear", "factor": -4.0, "rope_theta": 1e4}})
    case("window 0", "mistral", "refused", edit={"sliding_window": 0})
    case("window as a text", "mistral", "refused", edit={"sliding_window": "8"})
    for kind in ("qwen2", "qwen3"):
        case("types too few", kind, "refused", edit={"layer_types": ["full_attention"]})
        case("window null", kind, "refused", edit={"use_sliding_window": True, "sliding_window": None, "layer_types": ["sliding_attention"] * 2})
    case("no biases said", "qwen2", edit={"attention_bias": False})
    for function in ("gelu_pytorch_tanh", "gelu", "silu"):
        case("activation " + function, "gemma3", "refused" if function == "gelu" else "equal", hidden_activation=function)
    case("another act", "gemma3", edit={"hidden_act": "relu"})
    case("scores capped", "gemma3", "refused", edit={"attn_logit_softcapping": 20.0})
    case("in a larger model", "gemma3", "refused", edit=lambda c: (c.update(text_config=dict(c), model_type="gemma3")))
    case("eps", "gpt2", layer_norm_epsilon=1e-2)
    case("both directions", "gpt2", "refused", edit={"is_causal": False})
    case("padding", "gpt2", pad_token_id=7)
    case("upcast", "gpt2", reorder_and_upcast_attn=True)
    case("cross attention", "gpt2", "refused", edit={"add_cross_attention": True})
    case("positions as contexts", "gpt2", edit={"n_ctx": 16})
    case("drop attention", "phi3", attention_dropout=0.3)
    case("longrope inside", "phi3", "refused", edit={"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [2.0] * 4, "long_factor": [3.0] * 4}})
    for kind in T5S:
        case("decoder alone", kind, edit={"is_decoder": True})
        case("buckets 0", kind, "refused", edit={"relative_attention_num_buckets": 0})
        case("eps null", kind, "refused", edit={"layer_norm_epsilon": "1e-6"})


def inputs(config, generator):
    ids = torch.randint(3, config.vocab_size, (2, WIDTH), generator=generator)
    if config.model_type not in T5S:
        if config.pad_token_id is not None: # an embedding that gets no gradient
            ids[0, 5] = ids[1, 3] = config.pad_token_id
        return {"input_ids": ids, "labels": ids}
    mask = torch.ones_like(ids)
    mask[1, WIDTH - 7:] = 0
    labels = torch.randint(3, config.vocab_size, (2, TARGET), generator=generator)
    labels[0, TARGET - 3:] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def class_of(kind):
    return AutoModelForSeq2SeqLM if kind in T5S else AutoModelForCausalLM


def load(folder):
    kind = AutoConfig.from_pretrained(folder).model_type
    return class_of(kind).from_pretrained(folder, dtype=torch.float64).eval()


def train(folder, steps=10):
    """Ten steps of AdamW in fp32, in the form of tests/golden/llama_curve."""
    model = class_of("llama").from_pretrained(folder, dtype=torch.float32).train()
    lr, log = 3e-3, []
    data = torch.randint(3, model.config.vocab_size, (steps, 4, WIDTH), generator=torch.Generator().manual_seed(5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    for i in range(steps):
        optimizer.param_groups[0]["lr"] = lr * (i + 1) / steps
        loss = model(input_ids=data[i], labels=data[i]).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        log.append({"loss": loss.item(), "grad_norm": norm.item(), "lr": optimizer.param_groups[0]["lr"]})
    save_file({"data": data.int()}, folder + "/data.safetensors")
    save_file({name: p.detach().clone().contiguous() for name, p in model.named_parameters()}, folder + "/final.safetensors")
    with open(folder + "/curve.json", "w") as f:
        json.dump({"lr": lr, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0, "clip": 1.0, "warmup_steps": steps,
                   "steps": steps, "log": log}, f)


def refer(folder, generator):
    model = load(folder)
    io = inputs(model.config, generator)
    out = model(**io)
    out.loss.backward()
    if model.config.model_type not in T5S:
        del io["labels"]
    io |= {"logits": out.logits.float(), "loss": out.loss.float()}
    io |= {"grad." + name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
    save_file({name: t.detach().contiguous() for name, t in io.items()}, folder + "/io.safetensors")


def make(out, part, n_parts):
    """Every n_parts-th case, from number `part` (1 and up) on; what becomes of a case does not depend on the others."""
    lines = []
    for number, (name, kind, expect, edit, weights, dtype, parts, config) in enumerate(cases):
        if number % n_parts != part - 1:
            continue
        generator = torch.Generator().manual_seed(number)
        folder = os.path.join(out, name.replace(" ", "_").replace(",", ""))
        torch.manual_seed(number)
        drawn = f"-{kind}-drawn " in name
        model = class_of(kind).from_config(configs[kind](**(config if drawn else usual[kind] | config)))
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
        if name.endswith("-usual") and kind in DECODERS:
            train(folder)
        lines.append(f"{os.path.basename(folder)} {expect} {'t5' if kind in T5S else kind}\n")
    with open(out + "/list", "w") as f:
        f.writelines(lines)


def logits_of(folder, io):
    given = {name: io[name] for name in ("input_ids", "attention_mask", "labels") if name in io}
    with torch.no_grad():
        return load(folder)(**given).logits


# What an export says in its own way: the type of its weights, both forms of rope, what its weights are tied to.
OURS = {"dtype", "torch_dtype", "rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq", "tie_word_embeddings",
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
    forms = [(), ("rope_parameters",), ("rope_scaling", "rope_theta", "rope_local_base_freq")]
    if before["model_type"] in T5S + ("gpt2",):
        forms = [()]
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


if __name__ == "__main__":
    describe_decoders()
    describe_families()
    describe_t5()
    describe_random(int(os.environ.get("FSDP_DRAWN", "8")))
    describe_odd()
    {"make": make, "compare": compare}[sys.argv[1]](sys.argv[2], *map(int, sys.argv[3:]))
