"""Rounds of Hugging Face's tokenizers on one thread, when bench_tokenizer asks: tokenizer_rounds.py TOKENIZER_JSON TEXT.
TEXT holds documents that NUL bytes separate. For every line on standard input all documents are encoded once; the answer is a
line with the seconds of the faster of its two calls (with and without offsets) and the number of tokens."""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer, __version__

tokenizer = Tokenizer.from_file(sys.argv[1])
with open(sys.argv[2], encoding="utf-8", newline="") as file:
    documents = file.read().split("\0")[:-1]
print(f"tokenizers {__version__}", flush=True)
for _ in sys.stdin:
    best, count = None, 0
    for encode in (tokenizer.encode_batch, getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)):
        began = time.perf_counter()
        encoded = encode(documents)
        seconds = time.perf_counter() - began
        best = seconds if best is None else min(best, seconds)
        count = sum(len(e.ids) for e in encoded)
    print(best, count, flush=True)
