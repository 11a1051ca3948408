#!/usr/bin/env python3
"""47 kinds of tokenizer.json made by the tokenizers library, each with what the library makes of random multilingual texts.

usage: kinds.py COMPARE [N_TEXTS [SEED [KIND...]]], COMPARE being tests/tokenizer/golden_tokenizers.c as a program.
For each kind a folder with tokenizer.json and vectors.jsonl is written, compared and removed; exit code 1 when anything differs.
"""
import base64
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

# --- texts -----------------------------------------------------------------------------------------------------------

RANGES = [  # first, last, weight
    (0x20, 0x7E, 30), (0xA0, 0xFF, 6), (0x100, 0x24F, 6), (0x250, 0x2FF, 2), (0x300, 0x36F, 8), (0x370, 0x3FF, 4), (0x400, 0x52F, 5),
    (0x531, 0x5F4, 3), (0x600, 0x6FF, 4), (0x700, 0x7FF, 2), (0x800, 0x8FF, 2), (0x900, 0x97F, 4), (0x980, 0xDFF, 5), (0xE00, 0xEFF, 4),
    (0xF00, 0xFFF, 2), (0x1000, 0x109F, 2), (0x10A0, 0x10FF, 2), (0x1100, 0x11FF, 3), (0x1200, 0x139F, 2), (0x13A0, 0x17FF, 3),
    (0x1800, 0x1CFF, 3), (0x1D00, 0x1DFF, 2), (0x1E00, 0x1FFF, 6), (0x2000, 0x206F, 6), (0x2070, 0x218F, 4), (0x2190, 0x27FF, 3),
    (0x2800, 0x2BFF, 1), (0x2C00, 0x2DFF, 2), (0x2E00, 0x2FFF, 2), (0x3000, 0x30FF, 8), (0x3100, 0x33FF, 3), (0x3400, 0x4DBF, 2),
    (0x4E00, 0x9FFF, 10), (0xA000, 0xA4CF, 1), (0xA4D0, 0xABFF, 5), (0xAC00, 0xD7FF, 5), (0xE000, 0xF8FF, 1), (0xF900, 0xFAFF, 4),
    (0xFB00, 0xFDFF, 4), (0xFE00, 0xFE6F, 3), (0xFE70, 0xFFFF, 5), (0x10000, 0x107FF, 2), (0x10800, 0x10FFF, 3), (0x11000, 0x11FFF, 4),
    (0x12000, 0x143FF, 2), (0x14400, 0x167FF, 1), (0x16800, 0x16FFF, 2), (0x17000, 0x1B2FF, 2), (0x1BC00, 0x1CFFF, 2),
    (0x1D000, 0x1D7FF, 4), (0x1D800, 0x1E8FF, 2), (0x1E900, 0x1EFFF, 2), (0x1F000, 0x1FAFF, 8), (0x1FB00, 0x1FFFF, 1),
    (0x20000, 0x323AF, 4), (0xE0000, 0xE01EF, 1), (0xF0000, 0x10FFFF, 1), (0x00, 0x1F, 2), (0x7F, 0x9F, 2),
]
WORDS = """the of and to in is was that it's don't we'll I'VE she'd they're hello world tokenizer language model weights Straße
naïve café Ångström résumé ﬁne eﬃcient ½ ² ⅷ İstanbul ſtop ΑΛΦΑ Σίσυφος ὈΔΥΣΣΕΎΣ Привет мир Ёлка Україна שלום עולם بالعالم مرحبا
नमस्ते दुनिया বাংলা தமிழ் สวัสดี ชาวโลก ភាសា မြန်မာ ქართული ᏣᎳᎩ አማርኛ 안녕하세요 한국어 你好 世界 漢字 ひらがな カタカナ ー ｶﾞ ＦＵＬＬ １２３ 日本語123abc
👍🏽 👨‍👩‍👧‍👦 🇩🇪 é e\u0301 a\u0323\u0307 x\u0334\u0302 한 \u1112\u1161\u11ab 3.14159 1,000,000 2026-11-15 http://example.com/a?b=c&d=e user@host.org C++ #hash
foo_bar CamelCase HTTPServer XMLHttp __init__ `` '' “quoted” ‘single’ — … ¿qué? ¡sí! «oui» 、。「」 ؟ । ∑∫√ →⇒ ™®©""".split()
ODD = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200b", "\u200d", "\ufeff", "\u2028", "\x00", "\x0b", "\x85", "\u2581",
       "\u2581\u2581", "##", "</w>", "<0x41>", "<0xE2>", "<unk>", "[UNK]", "<s>", "</s>", "[CLS]", "[SEP]", "<pad>", "Ġ", "Ċ", "\ufffd", "'s", "'S",
       "<|endoftext|>", "[MASK]", "[MASK] ", " <ent>", "<Ent>", "ADDED", "added", "<mixed É>", "Ａdded", ".", "..", "...", "!?", " .", " n't", " 'm", "-", "--", "_"]


def random_point(rng):
    first, last, _ = rng.choices(RANGES, [r[2] for r in RANGES])[0]
    return chr(rng.randint(first, last))


def random_text(rng):
    parts = []
    for _ in range(rng.choice([0, 1, 1, 2, 3, 5, 8, 13, 21])):
        kind = rng.random()
        if kind < 0.45:
            parts.append(rng.choice(WORDS))
            if rng.random() < 0.7:
                parts.append(" ")
        elif kind < 0.6:
            parts.append(rng.choice(ODD))
        elif kind < 0.75:
            first, last, _ = rng.choice(RANGES)
            parts.append("".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 6))))
        elif kind < 0.85:
            parts.append("".join(rng.choice("abcdefgXYZ 0123456789.,") for _ in range(rng.randint(1, 12))))
        else:
            parts.append("".join(random_point(rng) for _ in range(rng.randint(1, 5))))
    return "".join(c for c in "".join(parts) if not 0xD800 <= ord(c) <= 0xDFFF)


# --- kinds -----------------------------------------------------------------------------------------------------------

GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = GPT4.replace(r"{1,3}", "")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?"
         r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
DEEPSEEK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KIMI = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}|\s+|[^\s\p{L}\p{N}]+"

N, P, D = normalizers, pre_tokenizers, decoders
SPECIALS = ["<unk>", "<s>", "</s>", "<pad>"]
BERT_SPECIALS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
BYTES = ["<0x%02X>" % b for b in range(256)]


class Corpus:
    texts = []


def finish(t, trainer, normalizer=None, pre=None, decoder=None, post=None):
    if normalizer is not None:
        t.normalizer = normalizer
    if pre is not None:
        t.pre_tokenizer = pre
    if decoder is not None:
        t.decoder = decoder
    t.train_from_iterator(Corpus.texts, trainer)
    if post is not None:
        t.post_processor = post(t) if callable(post) else post
    return t


def bpe(normalizer=None, pre=None, decoder=None, post=None, specials=SPECIALS, alphabet=None, vocab=1200, train_prefix=None, train_suffix=None, **options):
    more = {}
    if train_prefix:
        more["continuing_subword_prefix"] = options["continuing_subword_prefix"] = train_prefix
    if train_suffix:
        more["end_of_word_suffix"] = options["end_of_word_suffix"] = train_suffix
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=specials, show_progress=False, initial_alphabet=alphabet or [],
                                  limit_alphabet=vocab // 4 if alphabet is None else 100000, **more)
    return finish(Tokenizer(models.BPE(**options)), trainer, normalizer, pre, decoder, post)


def byte_bpe(normalizer=None, pre=None, post=None, decoder=None, **options):
    return bpe(normalizer, pre or P.ByteLevel(add_prefix_space=False), decoder or D.ByteLevel(), post,
               alphabet=P.ByteLevel.alphabet(), **options)


def unigram(normalizer=None, pre=None, decoder=None, post=None, specials=SPECIALS, vocab=900):
    Corpus.texts = Corpus.texts[-1500:]  # words: the trainer wants room for every character that it sees
    trainer = trainers.UnigramTrainer(vocab_size=vocab, special_tokens=specials, unk_token="<unk>", show_progress=False)
    return finish(Tokenizer(models.Unigram()), trainer, normalizer, pre, decoder, post)


def unigram_bytes(t):
    """The same with byte tokens and byte_fallback, which its trainer does not make."""
    file = json.loads(t.to_str())
    file["model"]["vocab"] += [[b, -20.5 - i / 7] for i, b in enumerate(BYTES)]
    file["model"]["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(file))


def word_piece(normalizer=None, pre=None, decoder=None, post=None, vocab=1200, prefix="##", most=100):
    trainer = trainers.WordPieceTrainer(vocab_size=vocab, special_tokens=BERT_SPECIALS, show_progress=False, limit_alphabet=300,
                                        continuing_subword_prefix=prefix)
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=most, continuing_subword_prefix=prefix))
    return finish(t, trainer, normalizer, pre, decoder or D.WordPiece(prefix=prefix), post)


def word_level(normalizer=None, pre=None, decoder=None, post=None):
    trainer = trainers.WordLevelTrainer(vocab_size=1500, special_tokens=SPECIALS, show_progress=False)
    return finish(Tokenizer(models.WordLevel(unk_token="<unk>")), trainer, normalizer, pre, decoder, post)


def template(first, last=None):
    def make(t):
        ids = [(x, t.token_to_id(x)) for x in (first, last) if x]
        return processors.TemplateProcessing(single=first + " $A" + (" " + last if last else ""), special_tokens=ids)
    return make


def bert_post(t):
    return processors.BertProcessing(("[SEP]", t.token_to_id("[SEP]")), ("[CLS]", t.token_to_id("[CLS]")))


def roberta_post(t):
    return processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")), trim_offsets=True, add_prefix_space=False)


def with_added(t, normalized=True):
    t.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True), AddedToken("<ent>", rstrip=True, special=True),
                          AddedToken("<|endoftext|>", normalized=False, special=True)])
    t.add_tokens([AddedToken("ADDED", single_word=True, normalized=normalized), AddedToken("<mixed É>", normalized=normalized),
                  AddedToken("the", single_word=True, lstrip=True, rstrip=True, normalized=False), AddedToken("\x00", normalized=False),
                  AddedToken("  ", normalized=False), AddedToken("zz9", normalized=True)])
    return t


def llama2(normalizer, pre=None, **options):
    decoder = D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
    return bpe(normalizer, pre, decoder, template("<s>"), specials=SPECIALS + BYTES, byte_fallback=True, fuse_unk=True, unk_token="<unk>", **options)


def charsmap():
    """T5's map, from the reference data of the tests."""
    path = os.path.join(os.path.dirname(__file__), "../golden/tokenizer_t5/tokenizer.json")
    normalizer = json.load(open(path))["normalizer"]
    for step in normalizer.get("normalizers", [normalizer]):
        if step["type"] == "Precompiled":
            return N.Precompiled(base64.b64decode(step["precompiled_charsmap"]))
    raise SystemExit("kinds.py: no character map in " + path)


def split(pattern, behavior="isolated", invert=False):
    return P.Split(pattern, behavior, invert)


KINDS = {
    "gpt2": lambda: byte_bpe(post=processors.ByteLevel(trim_offsets=True)),
    "gpt2_prefix_space": lambda: byte_bpe(pre=P.ByteLevel(add_prefix_space=True)),
    "roberta": lambda: byte_bpe(post=roberta_post),
    "llama3": lambda: byte_bpe(pre=P.Sequence([split(Regex(GPT4)), P.ByteLevel(add_prefix_space=False, use_regex=False)]), post=template("<s>"),
                               ignore_merges=True),
    "qwen2": lambda: byte_bpe(N.NFC(), P.Sequence([split(Regex(QWEN)), P.ByteLevel(add_prefix_space=False, use_regex=False)])),
    "gpt4o": lambda: byte_bpe(pre=P.Sequence([split(Regex(GPT4O)), P.ByteLevel(add_prefix_space=False, use_regex=False)])),
    "deepseek": lambda: byte_bpe(pre=P.Sequence([split(Regex(r"\p{N}{1,3}")), split(Regex("[一-龥぀-ゟ゠-ヿ]+")), split(Regex(DEEPSEEK)),
                                                 P.ByteLevel(add_prefix_space=False, use_regex=False)])),
    "kimi": lambda: byte_bpe(pre=P.Sequence([split(Regex(KIMI)), P.ByteLevel(add_prefix_space=False, use_regex=False)])),
    "byte_level_digits": lambda: byte_bpe(N.NFKC(), P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)])),
    "byte_level_normalizer": lambda: bpe(N.Sequence([N.NFD(), N.ByteLevel()]), None, D.ByteLevel(), alphabet=P.ByteLevel.alphabet()),
    "byte_level_added": lambda: with_added(byte_bpe(N.NFKD())),
    "llama2": lambda: llama2(N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), vocab=1500),
    "llama2_first": lambda: llama2(None, P.Metaspace("▁", "first"), vocab=1500),
    "mistral": lambda: llama2(None, P.Metaspace("▁", "first", split=False), vocab=1500),
    "gemma": lambda: bpe(N.Replace(" ", "▁"), split(" ", "merged_with_previous"), D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse()]),
                         template("<s>"), specials=SPECIALS + BYTES, byte_fallback=True, unk_token="<unk>", vocab=1500),
    "llama2_added": lambda: with_added(llama2(N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), vocab=1500)),
    "bpe_unknown": lambda: bpe(None, P.Whitespace(), None, unk_token="<unk>"),
    "bpe_fused_unknown": lambda: bpe(N.NFC(), P.Whitespace(), D.Fuse(), unk_token="<unk>", fuse_unk=True),
    "bpe_no_unknown": lambda: bpe(None, P.WhitespaceSplit()),
    "clip": lambda: byte_bpe(N.Sequence([N.NFC(), N.Replace(Regex(r"\s+"), " "), N.Lowercase()]),
                             P.Sequence([split(Regex(CLIP), "removed", True), P.ByteLevel(add_prefix_space=False)]), unk_token="<unk>",
                             decoder=D.BPEDecoder("</w>"), train_suffix="</w>", vocab=1500),
    "bpe_suffix": lambda: bpe(N.Lowercase(), P.BertPreTokenizer(), D.BPEDecoder(), unk_token="<unk>", train_suffix="</w>"),
    "bpe_prefix": lambda: bpe(N.NFKC(), P.Whitespace(), D.WordPiece(), unk_token="<unk>", train_prefix="##"),
    "bpe_delimiter": lambda: bpe(None, P.CharDelimiterSplit("e"), None, unk_token="<unk>", fuse_unk=True),
    "bpe_punctuation": lambda: bpe(None, P.Sequence([P.WhitespaceSplit(), P.Punctuation("contiguous")]), None, unk_token="<unk>"),
    "bpe_punctuation_next": lambda: bpe(N.NFD(), P.Punctuation("merged_with_next"), D.Fuse(), unk_token="<unk>"),
    "bpe_scripts": lambda: bpe(None, P.Sequence([P.UnicodeScripts(), P.WhitespaceSplit()]), None, unk_token="<unk>"),
    "bpe_words": lambda: bpe(None, P.Sequence([split(Regex(r"\w+|[^\w\s]+"), "contiguous"), split(Regex(r"\d"), "merged_with_previous")]), D.Fuse(),
                             unk_token="<unk>"),
    "bpe_fixed_length": lambda: bpe(None, P.FixedLength(3), D.Fuse(), unk_token="<unk>"),
    "t5": lambda: unigram(N.Sequence([charsmap(), N.Strip(False, True), N.Replace(Regex(" {2,}"), "▁")]), P.Metaspace(), D.Metaspace(),
                          template("<s>", "</s>")),
    "xlm_roberta": lambda: unigram(charsmap(), P.Sequence([P.WhitespaceSplit(), P.Metaspace()]), D.Metaspace(), template("<s>", "</s>")),
    "albert": lambda: unigram(N.Sequence([N.Replace("``", '"'), N.Replace("''", '"'), N.NFKD(), N.StripAccents(), N.Lowercase(), charsmap()]),
                              P.Sequence([P.WhitespaceSplit(), P.Metaspace()]), D.Metaspace()),
    "unigram_bytes": lambda: unigram_bytes(unigram(None, P.Metaspace("▁", "never"), D.Sequence([D.ByteFallback(), D.Metaspace("▁", "never")]))),
    "unigram_nmt": lambda: unigram(N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " ")]), P.Metaspace(), D.Metaspace()),
    "unigram_strip": lambda: unigram(N.Sequence([N.Strip(True, True), N.NFC()]), P.Metaspace("▁", "always", split=False), D.Metaspace()),
    "unigram_scripts": lambda: unigram(N.NFKC(), P.Sequence([P.UnicodeScripts(), P.Metaspace("▁", "never")]), D.Metaspace("▁", "never")),
    "unigram_added": lambda: with_added(unigram(N.Sequence([N.NFKD(), N.Lowercase()]), P.Metaspace(), D.Metaspace())),
    "bert_uncased": lambda: word_piece(N.BertNormalizer(), P.BertPreTokenizer(), None, bert_post),
    "bert_cased": lambda: word_piece(N.BertNormalizer(lowercase=False), P.BertPreTokenizer(), D.WordPiece(cleanup=False), bert_post),
    "bert_accents": lambda: word_piece(N.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False),
                                       P.BertPreTokenizer(), None, template("[CLS]", "[SEP]")),
    "bert_keep_accents": lambda: with_added(word_piece(N.BertNormalizer(strip_accents=False), P.BertPreTokenizer())),
    "word_piece_short": lambda: word_piece(N.Sequence([N.NFD(), N.Lowercase(), N.StripAccents()]), P.Whitespace(), most=9),
    "word_piece_prefix": lambda: word_piece(None, P.Sequence([P.WhitespaceSplit(), P.Digits()]), prefix="@@"),
    "word_level": lambda: word_level(None, P.Whitespace()),
    "word_level_lower": lambda: word_level(N.Sequence([N.NFKC(), N.Lowercase()]), P.WhitespaceSplit(), D.Fuse()),
    "word_level_split": lambda: word_level(None, P.Sequence([split(Regex(r"[\s\p{Zs}]+"), "removed"), P.Punctuation("isolated")])),
    "word_level_added": lambda: with_added(word_level(N.Lowercase(), P.Sequence([P.Whitespace(), P.Punctuation("merged_with_previous")]))),
    "ctc": lambda: word_level(None, split(Regex(r"."), "isolated"), D.CTC(pad_token="<pad>", word_delimiter_token="e")),
}


def special_only(t):
    return {"eos_token": "</s>", "pad_token": "[PAD9]", "mask_token": {"__type": "AddedToken", "content": "<ent>", "lstrip": True},
            "extra_special_tokens": ["the", "[MASK]"], "model_max_length": 10 ** 30}


def numbered(t):
    n = t.get_vocab_size()
    return {"added_tokens_decoder": {
        str(n + 1): {"content": "ADDED", "lstrip": True, "rstrip": False, "single_word": True, "normalized": True, "special": False},
        str(n): {"content": "<|endoftext|>", "special": True}, "1": {"content": "<s>", "rstrip": True, "special": True}}, "eos_token": "<|endoftext|>"}


# tokenizer_config.json beside some kinds: what only it lists, transformers adds.
CONFIGS = {"gpt2": special_only, "llama2": numbered, "bert_uncased": special_only, "t5": numbered, "word_level_lower": special_only}


class FromTransformers:
    """A folder as transformers opens it, with the calls of a Tokenizer."""

    def __init__(self, folder):
        from transformers import PreTrainedTokenizerFast
        self.t = PreTrainedTokenizerFast.from_pretrained(folder, clean_up_tokenization_spaces=False)

    def encode(self, text, add_special_tokens=True):
        return self.t._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids, skip_special_tokens=True):
        return self.t._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def get_vocab(self):
        return self.t.get_vocab()


def vectors(t, texts, rng):
    top = max(t.get_vocab().values())
    for text in texts:
        ids = t.encode(text).ids
        some = [rng.randint(0, top) for _ in range(rng.choice([0, 1, 2, 5, 12]))]
        yield {"text": text, "ids": ids, "ids_plain": t.encode(text, add_special_tokens=False).ids, "decoded": t.decode(ids),
               "decoded_raw": t.decode(ids, skip_special_tokens=False), "any_ids": some, "any_decoded": t.decode(some, skip_special_tokens=False)}


def check(job):
    name, config, compare, n_texts, seed = job
    rng = random.Random(seed)
    texts = [random_text(rng) for _ in range(n_texts)]
    Corpus.texts = texts[:1500] + [" ".join(rng.choice(WORDS) for _ in range(12)) for _ in range(1500)]
    folder = tempfile.mkdtemp(prefix="kind_")
    try:
        t = KINDS[name]()
        t.save(folder + "/tokenizer.json")
        t = Tokenizer.from_file(folder + "/tokenizer.json")  # with the scores as its parser reads them
        if config:
            json.dump(CONFIGS[name](t), open(folder + "/tokenizer_config.json", "w"))
            t = FromTransformers(folder)
            name += ", with tokens of its tokenizer_config.json"
        with open(folder + "/vectors.jsonl", "w") as file:
            for v in vectors(t, texts, rng):
                file.write(json.dumps(v, ensure_ascii=False) + "\n")
        result = subprocess.run([compare, folder], capture_output=True, text=True, errors="replace")
        lines = result.stdout.strip().split("\n")
        said = lines[-1].replace(folder, name) if result.returncode == 0 else "%s: %s%s" % (name, "; ".join(lines[:3] + lines[-1:]), result.stderr.strip())
        return result.returncode == 0, said
    finally:
        shutil.rmtree(folder)


def main():
    compare = os.path.abspath(sys.argv[1])
    n_texts = int(sys.argv[2]) if len(sys.argv) > 2 else 6000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    names = sys.argv[4:] or list(KINDS)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    failed = 0
    with multiprocessing.Pool(2) as pool:
        jobs = [(name, False, compare, n_texts, seed) for name in names]
        jobs += [(name, True, compare, n_texts, seed) for name in names if name in CONFIGS]
        for ok, said in pool.imap(check, jobs):
            failed += not ok
            print(said, flush=True)
    print("%d kinds of tokenizer, %d texts each: %s" % (len(names), n_texts, "nothing differs" if failed == 0 else "%d kinds differ" % failed))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
