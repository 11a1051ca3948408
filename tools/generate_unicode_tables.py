#!/usr/bin/env python3
"""Writes src/tokenizer/text/unicode_tables.c: what the tokenizers library thinks of every code point.

Run with the `tokenizers` (0.23) and `regex` packages installed:  tools/generate_unicode_tables.py > src/tokenizer/text/unicode_tables.c
The library mixes several Unicode versions (Rust's own, Oniguruma's, two crates'), so its answers are asked for one code
point at a time rather than taken from one edition of the standard. Only what it does not expose (grapheme break classes,
combining classes) comes from elsewhere.
"""
import sys
import unicodedata

import regex
from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CLASSES = [  # bit names as in unicode.h, in bit order
    "LETTER", "NUMBER", "SPACE", "WORD", "WHITE", "NUMERIC", "PUNCTUATION", "MARK",
]
BREAKS = ["Other", "CR", "LF", "Control", "Extend", "ZWJ", "Regional_Indicator", "Prepend", "SpacingMark", "L", "V", "T", "LV", "LVT"]
BATCH = 512


def matched(pre_tokenizer):
    """Code points that the pre-tokenizer drops or isolates: it must remove what it matches."""
    found = set()
    for first in range(0, len(POINTS), BATCH):
        batch = POINTS[first:first + BATCH]
        kept = set("".join(piece for piece, _ in pre_tokenizer.pre_tokenize_str("".join(map(chr, batch)))))
        found.update(c for c in batch if chr(c) not in kept)
    return found


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "removed")


def words():
    """\\w of the Rust regex crate, seen through the Whitespace pre-tokenizer: word characters join their neighbours."""
    whitespace = pre_tokenizers.Whitespace()
    return {c for c in POINTS if len(whitespace.pre_tokenize_str("a" + chr(c) + "a")) == 1}


def isolated(pre_tokenizer):
    """Matched by a pre-tokenizer that isolates: then 'a', the code point and 'a' are three pieces."""
    return {c for c in POINTS if len(pre_tokenizer.pre_tokenize_str("a" + chr(c) + "a")) == 3}


def grapheme_flags():
    """Break class in the low four bits, then Extended_Pictographic and the two kinds of Indic conjuncts."""
    flags = [0] * 0x110000
    for value, name in enumerate(BREAKS):
        if value:
            pattern = regex.compile(r"\p{GCB=%s}" % name)
            for c in POINTS:
                if pattern.match(chr(c)):
                    flags[c] = value
    for bit, prop in ((16, r"\p{Extended_Pictographic}"), (32, r"\p{InCB=Consonant}"), (64, r"\p{InCB=Linker}"),
                      (128, r"\p{InCB=Extend}")):
        pattern = regex.compile(prop)
        for c in POINTS:
            if pattern.match(chr(c)):
                flags[c] |= bit
    return flags


def mapping(normalizer, skip=lambda c: False):
    changed = {}
    for c in POINTS:
        if not skip(c):
            text = normalizer.normalize_str(chr(c))
            if text != chr(c):
                changed[c] = [ord(x) for x in text]
    return changed


def hangul(c):
    return 0xAC00 <= c < 0xAC00 + 11172


def emit_runs(classes, breaks):
    runs, last = [], None
    for c in range(0x110000):
        value = (classes[c], breaks[c])
        if value != last:
            runs.append((c, *value))
            last = value
    print("const unicode_run unicode_runs[] = {")
    emit_rows(["{0x%X, %d, %d}" % run for run in runs])
    print("};\nconst size_t unicode_n_runs = sizeof unicode_runs / sizeof unicode_runs[0];\n")


def emit_rows(items):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 118:
            print(line)
            line = "   "
        line += " " + item + ","
    print(line)


def emit_mapping(name, table, pool):
    rows = []
    for c, points in sorted(table.items()):
        rows.append("{0x%X, %d, %d}" % (c, place(points, pool), len(points)))
    print("const unicode_mapping unicode_%s[] = {" % name)
    emit_rows(rows)
    print("};\nconst size_t unicode_n_%s = sizeof unicode_%s / sizeof unicode_%s[0];\n" % (name, name, name))


def place(points, pool):
    """Where `points` stand in the shared pool; appended when no earlier entry holds them."""
    key = tuple(points)
    if key not in pool["where"]:
        pool["where"][key] = len(pool["points"])
        pool["points"].extend(points)
    return pool["where"][key]


def main():
    classes = [0] * 0x110000
    sets = [matched(split(r"\p{L}")), matched(split(r"\p{N}")), matched(split(r"\s")), words(),
            matched(pre_tokenizers.WhitespaceSplit()), isolated(pre_tokenizers.Digits(individual_digits=True)),
            isolated(pre_tokenizers.Punctuation("isolated")),
            {c for c in POINTS if normalizers.StripAccents().normalize_str("a" + chr(c)) == "a"}]
    for bit, members in enumerate(sets):
        print("%s %d" % (CLASSES[bit], len(members)), file=sys.stderr)
        for c in members:
            classes[c] |= 1 << bit
    canonical = mapping(normalizers.NFD(), hangul)
    compatible = {c: p for c, p in mapping(normalizers.NFKD(), hangul).items() if canonical.get(c) != p}
    lower = mapping(normalizers.Lowercase())
    nfc = normalizers.NFC()
    pairs = {}
    for c in canonical:
        first = unicodedata.decomposition(chr(c)).split()
        if len(first) == 2 and not first[0].startswith("<"):
            a, b = (int(x, 16) for x in first)
            if nfc.normalize_str(chr(a) + chr(b)) == chr(c):
                pairs[c] = (a, b)
    combining = [(c, unicodedata.combining(chr(c))) for c in POINTS if unicodedata.combining(chr(c))]

    print("/* Generated by tools/generate_unicode_tables.py; do not edit. Properties of code points as the tokenizers library")
    print(" * sees them: classes and grapheme breaks by runs, decompositions, compositions, combining classes, lower case. */")
    print('#include "data/unicode_tables.h"\n')
    emit_runs(classes, grapheme_flags())
    pool = {"where": {}, "points": []}
    emit_mapping("canonical", canonical, pool)
    emit_mapping("compatible", compatible, pool)
    emit_mapping("lower", lower, pool)
    print("const uint32_t unicode_pool[] = {")
    emit_rows(["0x%X" % p for p in pool["points"]])
    print("};\n")
    print("const unicode_composition unicode_compositions[] = {")
    emit_rows(["{0x%X, 0x%X, 0x%X}" % (a, b, c) for c, (a, b) in sorted(pairs.items(), key=lambda item: item[1])])
    print("};\nconst size_t unicode_n_compositions = sizeof unicode_compositions / sizeof unicode_compositions[0];\n")
    runs = []
    for c, k in combining:
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == k:
            runs[-1][1] = c
        else:
            runs.append([c, c, k])
    print("const unicode_combining unicode_combinings[] = {")
    emit_rows(["{0x%X, 0x%X, %d}" % tuple(r) for r in runs])
    print("};\nconst size_t unicode_n_combinings = sizeof unicode_combinings / sizeof unicode_combinings[0];")


main()
