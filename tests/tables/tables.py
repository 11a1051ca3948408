"""Random tables written by pyarrow in every form that is read, made into tokens by fsdp and compared text by text; and conversations
in Parquet, which must give the training that they give as JSONL. usage: tables.py FSDP CASES SEED"""
import json
import os
import random
import struct
import subprocess
import sys

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

fsdp, cases, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random.seed(seed)


def text():
    kind = random.random()
    if kind < 0.1:
        return None
    if kind < 0.5:
        return random.choice(["a", "b", "said more than once", "Grüße 漢字"])
    return "".join(random.choice("abc \n\0é漢") for _ in range(random.randint(0, random.choice([5, 100, 3000])))) + "."


def other(n):
    message = pa.struct([("role", pa.string()), ("content", pa.list_(pa.string()))])
    return random.choice([
        lambda: pa.array(range(n), pa.int64()),
        lambda: pa.array([[1, 2]] * n, pa.list_(pa.int32())),
        lambda: pa.array([{"a": 1, "b": "z"}] * n, pa.struct([("a", pa.int32()), ("b", pa.string())])),
        lambda: pa.array([True] * n),
        lambda: pa.array([[{"role": "u", "content": ["x"]}]] * n, pa.list_(message)),
        lambda: pa.array(["q"] * n).dictionary_encode(),
    ])()


def make_table(texts):
    names = ["id", "meta", "z"][: random.randint(0, 3)] + ["text"]
    random.shuffle(names)
    kinds = [pa.string(), pa.large_string()]
    columns = [pa.array(texts, random.choice(kinds)) if name == "text" else other(len(texts)) for name in names]
    required = None not in texts and random.random() < 0.5
    fields = [pa.field(name, c.type, nullable=name != "text" or not required) for name, c in zip(names, columns)]
    return pa.table(columns, schema=pa.schema(fields))


def write(table, kinds=("parquet", "parquet", "stream", "file")):
    kind = random.choice(kinds)
    if kind == "parquet":
        options = dict(
            compression=random.choice(["none", "snappy", "gzip", "zstd"]),
            use_dictionary=random.choice([True, False, ["text"]]),
            data_page_version=random.choice(["1.0", "2.0"]),
            row_group_size=random.choice([500, 10000]) if len(table) > 1000 else random.choice([1, 10, 1000]),
            data_page_size=random.choice([64, 1000, 1 << 20]),
            dictionary_pagesize_limit=random.choice([10, 200, 1 << 20]),
            write_statistics=random.choice([True, False]),
        )
        pq.write_table(table, "table.parquet", **options)
        return "table.parquet", options
    packing = random.choice([None, "zstd"])
    make = ipc.new_stream if kind == "stream" else ipc.new_file
    with make("table.arrow", table.schema, options=ipc.IpcWriteOptions(compression=packing)) as writer:
        writer.write_table(table, max_chunksize=random.choice([10, 1000]))
    return "table.arrow", (kind, packing)


def documents(path):
    """Bytes are tokens, and 0 ends a document."""
    data = open(path, "rb").read()
    width, n_tokens, n_documents, index = struct.unpack_from("<I8xQQQ", data, 12)
    tokens = struct.unpack_from("<%d%s" % (n_tokens, "H" if width == 2 else "I"), data, 64)
    ends = struct.unpack_from("<%dQ" % n_documents, data, index)
    return [bytes(tokens[a : b - 1]) for a, b in zip((0,) + ends, ends)]


def conversation():
    if random.random() < 0.1:
        return random.choice([None, []])
    say = lambda: random.choice([None, "", "yes", "é" * random.randint(1, 30), text()])
    return [{"role": random.choice(["user", "assistant"]), "content": say()} for _ in range(random.randint(1, 6))]


def trained(path):
    """Samples, skipped records and the loss of a step on all of them."""
    command = [fsdp, "train", "--device", "cpu", "--threads", "1", "--model_type", "llama_v2", "--vocab_size", "256", "--hidden_width", "8",
               "--num_layers", "1", "--num_heads", "1", "--intermediate_size", "8", "--max_context_width", "256", "--train_batch_size", "64",
               "--max_steps", "2", "--sample_tokens", "0", "--no_checkpoint_at_end", "--overwrite", "--output_dir", "run", "--dataset", path,
               "--chat_template", "template.jinja"]
    done = subprocess.run(command, capture_output=True, text=True)
    losses = [json.loads(line)["loss"] for line in open("run/metrics.jsonl")] if done.returncode == 0 else []
    return done.returncode, [line for line in done.stdout.splitlines() if line.startswith("data ")], losses


def compare_conversations(case):
    rows = [conversation() for _ in range(random.choice([1, 20, 300]))]
    rows.insert(0, [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])  # by which JSONL is known
    message = [pa.field("role", pa.string(), random.random() < 0.5), pa.field("content", random.choice([pa.string(), pa.large_string()]))]
    random.shuffle(message)
    column = pa.array(rows, pa.list_(pa.field("element", pa.struct(message), random.random() < 0.5)))
    table = pa.table({"id": other(len(rows)), "messages": column} if random.random() < 0.5 else {"messages": column})
    with open("rows.jsonl", "w") as f:
        f.writelines(json.dumps({"messages": row}) + "\n" for row in rows)
    path, options = write(table, ("parquet",))
    want, got = trained("rows.jsonl"), trained(path)
    if want != got or want[0]:
        sys.exit(f"conversations {case} of seed {seed}: {options}, {len(rows)} rows: {want} as JSONL, {got} as a table")


with open("template.jinja", "w") as f:
    f.write("{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}.{% endgeneration %}"
            "{% else %}{{ m.content }}{% endif %}{% endfor %}")
for case in range(max(1, cases // 4)):
    compare_conversations(case)
for case in range(cases):
    texts = [text() for _ in range(random.choice([1, 7, 100, 2000]))]
    if random.random() < 0.4:
        texts = [t or "x" for t in texts]
    texts[-1] = texts[-1] or "the last"
    path, options = write(make_table(texts))
    done = subprocess.run([fsdp, "tokenize", "--output", "tokens.bin", path], capture_output=True, text=True)
    wanted = [t.encode() for t in texts if t is not None]
    if done.returncode or documents("tokens.bin") != wanted:
        sys.exit(f"case {case} of seed {seed}: {options}, {len(texts)} rows: {done.stderr or 'other texts'}")
    os.unlink(path)
print(f"{cases} tables of pyarrow {pa.__version__} are read alike, and {max(1, cases // 4)} of conversations as their JSONL")
