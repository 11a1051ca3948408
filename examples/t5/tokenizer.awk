# A tokenizer.json of the kind that T5 has (Unigram, spaces as part of words, the end token added) over the words of the made
# articles; single letters stand in for all other words: awk -f words.awk -f tokenizer.awk
function piece(text, score) { printf "%s[\"%s\", %s]", n++ ? ", " : "", text, score }
function pieces(list, words, m, i) {
    m = split(list, words, " ")
    for (i = 1; i <= m; i++) piece("▁" words[i], -2)
}
BEGIN {
    printf "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n \"added_tokens\": ["
    special = "<pad> </s> <unk>"
    split(special, names_of, " ")
    for (i = 1; i <= 3; i++)
        printf "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}", \
            (i > 1 ? ", " : ""), i - 1, names_of[i]
    printf "],\n \"normalizer\": null,\n \"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"▁\", \"prepend_scheme\": \"always\", \"split\": true},\n"
    printf " \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}],\n"
    printf "  \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}],\n"
    printf "  \"special_tokens\": {\"</s>\": {\"id\": \"</s>\", \"ids\": [1], \"tokens\": [\"</s>\"]}}},\n"
    printf " \"decoder\": {\"type\": \"Metaspace\", \"replacement\": \"▁\", \"prepend_scheme\": \"always\", \"split\": true},\n"
    printf " \"model\": {\"type\": \"Unigram\", \"unk_id\": 2, \"byte_fallback\": false, \"vocab\": ["
    piece("<pad>", 0); piece("</s>", 0); piece("<unk>", 0)
    pieces(names " " verbs " " places " " days " " many " " people " " felt " On the it summarize")
    piece(".", -3); piece(":", -3); piece("▁", -6)
    for (i = 97; i <= 122; i++) { piece(sprintf("%c", i), -8); piece(toupper(sprintf("%c", i)), -8) }
    printf "]}}\n"
}
