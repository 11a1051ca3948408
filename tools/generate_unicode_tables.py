#!/usr/bin/env python3
"""Writes src/tokenizer/text/unicode_tables.c and category_tables.c: what the tokenizers library thinks of every code point.

Run with the `tokenizers` (0.23) and `regex` packages installed:  tools/generate_unicode_tables.py src/tokenizer/text
The library mixes several Unicode versions: Oniguruma's properties are of Unicode 16, its normal forms of Unicode 9, its clusters of Unicode 17, its marks,
punctuation, controls and scripts of other editions. So its answers are asked for one code point at a time rather than taken from
one edition of the standard. What it does not show by itself (combining classes, grapheme breaks) is taken from elsewhere where the
library behaves accordingly, and left out where it does not.
"""
import contextlib
import os
import struct
import sys
import unicodedata

import regex
from regex import _regex_core
from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CLASSES = [  # bit names as in unicode.h, in bit order
    "LETTER", "NUMBER", "SPACE", "WORD", "WHITE", "NUMERIC", "PUNCTUATION", "MARK",
]
BREAKS = ["Other", "CR", "LF", "Control", "Extend", "ZWJ", "Regional_Indicator", "Prepend", "SpacingMark", "L", "V", "T", "LV", "LVT"]
CATEGORIES = ["Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So",
              "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cs"]
BATCH = 512


def matched(pre_tokenizer, points=POINTS):
    """Code points that the pre-tokenizer drops or isolates: it must remove what it matches."""
    found = set()
    for first in range(0, len(points), BATCH):
        batch = points[first:first + BATCH]
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


def joining():
    """Code points that join the cluster before them: with a character map of 'a' to 'b' alone, the library maps the whole cluster."""
    units = [0] * 512
    units[0] = 256 << 10
    units[0x161] = 0x61 | 1 << 8 | 0x40 << 10
    units[0x121] = 1 << 31
    only_a = normalizers.Precompiled(struct.pack("<I512I", 4 * 512, *units) + b"b\0")
    return {c for c in POINTS if only_a.normalize_str("a" + chr(c)) == "b"}


def grapheme_flags(assigned):
    """Break class in the low four bits, then Extended_Pictographic and the two kinds of Indic conjuncts."""
    flags, joins = [0] * 0x110000, joining()
    known = sorted(joins.union(assigned))  # clusters are of a newer edition than Oniguruma's properties
    for value, name in enumerate(BREAKS):
        if value:
            pattern = regex.compile(r"\p{GCB=%s}" % name)
            for c in known:
                if pattern.match(chr(c)) and (name not in ("Extend", "ZWJ", "SpacingMark") or c in joins):
                    flags[c] = value
    for bit, prop in ((16, r"\p{Extended_Pictographic}"), (32, r"\p{InCB=Consonant}"), (64, r"\p{InCB=Linker}"),
                      (128, r"\p{InCB=Extend}")):
        pattern = regex.compile(prop)
        for c in known:
            if pattern.match(chr(c)):
                flags[c] |= bit
    return flags


def script_names():
    """Names of scripts, without abbreviations and what is no script."""
    names = {}
    for name, value in _regex_core.PROPERTIES["SCRIPT"][1].items():
        if value not in names or len(name) > len(names[value]):
            names[value] = name
    return sorted(name for name in names.values() if name not in ("UNKNOWN", "KATAKANAORHIRAGANA"))


def pieces_scripts():
    """The script of every code point as the UnicodeScripts pre-tokenizer sees it; 0 is what belongs to any."""
    scripts, found = pre_tokenizers.UnicodeScripts(), [0] * 0x110000
    joins = lambda a, b: len(scripts.pre_tokenize_str(chr(a) + chr(b))) == 1
    first = []  # a code point of each script that was met
    for c in POINTS:
        if joins(0x61, c) and joins(0x431, c):
            continue
        if c - 1 in first or not first or found[c - 1] == 0 or not joins(c - 1, c):
            same = [i for i, other in enumerate(first) if joins(other, c)]
            if not same:
                first.append(c)
            found[c] = same[0] + 1 if same else len(first)
        else:
            found[c] = found[c - 1]
    print("%d scripts" % len(first), file=sys.stderr)
    return found


def bert_flags():
    """Bit 0: clean_text drops it. Bit 1: strip_accents does. Bit 2: handle_chinese_chars puts spaces around it."""
    options = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    flags = [0] * 0x110000
    for bit, (option, expected) in enumerate((("clean_text", "ab"), ("strip_accents", "ab"), ("handle_chinese_chars", "a %s b"))):
        bert = normalizers.BertNormalizer(**dict(options, **{option: True}))
        for c in POINTS:
            if bert.normalize_str("a" + chr(c) + "b") == expected.replace("%s", chr(c)):
                flags[c] |= 1 << bit
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


def emit_runs(kind, name, *columns):
    """Rows of a first code point and the values that hold up to the next."""
    runs, last = [], None
    for c in range(0x110000):
        value = tuple(column[c] for column in columns)
        if value != last:
            runs.append((c, *value))
            last = value
    print("const %s %s[] = {" % (kind, name))
    emit_rows(["{0x%X, %s}" % (run[0], ", ".join(map(str, run[1:]))) for run in runs])
    print("};\nconst size_t %s = sizeof %s / sizeof %s[0];\n" % (name.replace("unicode_", "unicode_n_"), name, name))


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


def combining_classes():
    """Those that the library orders by: its tables are of an older edition, in which some marks are not there yet."""
    nfd, kept = normalizers.NFD(), []
    for c in POINTS:
        k = unicodedata.combining(chr(c))
        low, text = "\u0334", chr(c)  # a mark of class 1, the lowest; behind one of class 240, the highest
        moves = nfd.normalize_str("a" + text + low) == "a" + low + unicodedata.normalize("NFD", text) if k > 1 else \
            k == 1 and nfd.normalize_str("a\u0345" + text) == "a" + text + "\u0345"
        if moves:
            kept.append((c, k))
    return kept


def compositions(canonical):
    nfc, pairs = normalizers.NFC(), {}
    for c in canonical:
        first = unicodedata.decomposition(chr(c)).split()
        if len(first) == 2 and not first[0].startswith("<"):
            a, b = (int(x, 16) for x in first)
            if nfc.normalize_str(chr(a) + chr(b)) == chr(c):
                pairs[c] = (a, b)
    return pairs


def categories():
    """General category of Oniguruma; bit 7: \\w of the same."""
    found = [0] * 0x110000
    for value, name in enumerate(CATEGORIES):
        if name not in ("Cn", "Cs"):
            for c in matched(split(r"\p{%s}" % name)):
                found[c] = value
    found[0xD800:0xE000] = [CATEGORIES.index("Cs")] * 0x800
    for c in matched(split(r"\w")):
        found[c] |= 128
    return found


def emit_tables(assigned):
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

    print("/* Generated by tools/generate_unicode_tables.py; do not edit. Properties of code points as the tokenizers library")
    print(" * sees them: classes, grapheme breaks and scripts by runs, decompositions, compositions, combining classes, lower case. */")
    print('#include "tokenizer/text/unicode_tables.h"\n')
    emit_runs("unicode_run", "unicode_runs", classes, grapheme_flags(assigned), pieces_scripts(), bert_flags())
    pool = {"where": {}, "points": []}
    emit_mapping("canonical", canonical, pool)
    emit_mapping("compatible", compatible, pool)
    emit_mapping("lower", lower, pool)
    print("const uint32_t unicode_pool[] = {")
    emit_rows(["0x%X" % p for p in pool["points"]])
    print("};\n")
    print("const unicode_composition unicode_compositions[] = {")
    emit_rows(["{0x%X, 0x%X, 0x%X}" % (a, b, c) for c, (a, b) in sorted(compositions(canonical).items(), key=lambda item: item[1])])
    print("};\nconst size_t unicode_n_compositions = sizeof unicode_compositions / sizeof unicode_compositions[0];\n")
    runs = []
    for c, k in combining_classes():
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == k:
            runs[-1][1] = c
        else:
            runs.append([c, c, k])
    print("const unicode_combining unicode_combinings[] = {")
    emit_rows(["{0x%X, 0x%X, %d}" % tuple(r) for r in runs])
    print("};\nconst size_t unicode_n_combinings = sizeof unicode_combinings / sizeof unicode_combinings[0];")


def emit_categories(category, assigned):
    script, names = [0] * 0x110000, []
    for name in script_names():
        try:
            members = matched(split(r"\p{%s}" % name), assigned)
        except Exception:
            continue  # newer than the library
        names.append(name.lower())
        for c in members:
            script[c] = len(names)
    print("/* Generated by tools/generate_unicode_tables.py; do not edit. General categories, \\w and scripts of the Oniguruma that the")
    print(" * tokenizers library ships (Unicode 16), whichever is installed here. */")
    print('#include "tokenizer/text/category_tables.h"\n')
    emit_runs("unicode_category_run", "unicode_categories", category, script)
    print("const char *const unicode_scripts[] = {")
    emit_rows(['"%s"' % name for name in names])
    print("};\nconst size_t unicode_n_scripts = sizeof unicode_scripts / sizeof unicode_scripts[0];")


def main():
    category = categories()
    assigned = [c for c in POINTS if category[c] & 127 not in (CATEGORIES.index("Cn"), CATEGORIES.index("Co"))]
    print("%d code points are assigned" % len(assigned), file=sys.stderr)
    for name, emit in (("unicode_tables.c", lambda: emit_tables(assigned)), ("category_tables.c", lambda: emit_categories(category, assigned))):
        with open(os.path.join(sys.argv[1], name), "w") as file, contextlib.redirect_stdout(file):
            emit()


main()
