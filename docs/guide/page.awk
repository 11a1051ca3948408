# Markdown, as far as docs/ uses it, to HTML: headings, paragraphs, lists, tables, fenced and indented code; links, code and bold in text.
# A link to a page of the site becomes one; a link to any other file of the tree becomes its text, because the file is not there.
# -v pages="NAMES" of guides, references="FILES" of docs/ on the site, here="guide" or "" for a page of docs/.

function escape(text) { gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text); gsub(/"/, "\\&quot;", text); return text }
function is_in(list, word) { return index(" " list " ", " " word " ") > 0 }

# The address on the site of a link's target; "" where there is none.
function address(target,    file, anchor, name) {
    if (target ~ /^https?:/ || target ~ /^#/)
        return target
    anchor = target ~ /#/ ? substr(target, index(target, "#")) : ""
    file = target
    sub(/#.*/, "", file)
    name = file
    sub(/.*\//, "", name)
    sub(/\.md$/, "", name)
    if (here == "guide" && file ~ /^[a-z0-9-]+\.md$/ && is_in(pages, name))
        return name ".html" anchor
    if ((here == "guide" ? file ~ /^\.\.\/\.\.\/[a-z-]+\.md$/ : file ~ /^[a-z-]+\.md$/) && is_in(references, name ".md"))
        return "../docs/" name ".html" anchor
    return ""
}

# Flags are kept on one line: browsers would break them behind their dashes.
function whole_flags(code,    out) {
    for (out = ""; match(code, /(^|[ (,|])--?[A-Za-z0-9_][A-Za-z0-9_-]*/); code = substr(code, RSTART + RLENGTH)) {
        out = out substr(code, 1, RSTART - 1)
        if (substr(code, RSTART, 1) != "-") { out = out substr(code, RSTART, 1); RSTART++; RLENGTH-- }
        out = out "<span>" substr(code, RSTART, RLENGTH) "</span>"
    }
    return out code
}

# Text with its links, code and bold; code comes first, because nothing within it is special.
function inline(text,    out, at, ticks, close_at, label, target) {
    while (match(text, /`+|\*\*|\[[^]`]*(`[^`]*`)?[^]`]*\]\([^)]*\)/)) {
        out = out escape(substr(text, 1, RSTART - 1))
        ticks = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        if (ticks ~ /^`/ && (close_at = index(text, ticks))) {
            out = out "<code>" whole_flags(escape(trim(substr(text, 1, close_at - 1)))) "</code>"
            text = substr(text, close_at + length(ticks))
        } else if (ticks == "**" && (close_at = index(text, "**"))) {
            out = out "<strong>" inline(substr(text, 1, close_at - 1)) "</strong>"
            text = substr(text, close_at + 2)
        } else if (ticks ~ /^\[/) {
            at = index(ticks, "](")
            label = inline(substr(ticks, 2, at - 2))
            target = address(substr(ticks, at + 2, length(ticks) - at - 2))
            out = out (target == "" ? label : "<a href=\"" escape(target) "\">" label "</a>")
        } else
            out = out escape(ticks)
    }
    return out escape(text)
}
function trim(text) { sub(/^ /, "", text); sub(/ $/, "", text); return text }

# GitHub's name of a heading.
function anchor_of(text) { gsub(/[`*]/, "", text); text = tolower(text); gsub(/[!-,.\/:-@\[-^{-~]/, "", text); gsub(/ /, "-", text); return text }

function close_block() {
    if (paragraph != "")
        print (in_item ? "" : "<p>") inline(paragraph) (in_item ? "</li>" : "</p>")
    paragraph = ""
    in_item = 0
}
function close_list() { close_block(); if (list != "") print "</" list ">"; list = "" }
function close_table() { if (rows) print "</tbody></table></div>"; rows = 0 }
function close_all() { close_list(); close_table() }

# Cuts a row at bars outside code and without a backslash before them.
function cells(line, into,    n, i, c, cell, code) {
    n = 0; cell = ""; code = 0
    sub(/^\|/, "", line); sub(/\|[ \t]*$/, "", line)
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1)
        if (c == "\\" && substr(line, i + 1, 1) == "|") { cell = cell "|"; i++ }
        else if (c == "|" && !code) { into[++n] = cell; cell = "" }
        else { if (c == "`") code = !code; cell = cell c }
    }
    into[++n] = cell
    for (i = 1; i <= n; i++) { sub(/^[ \t]+/, "", into[i]); sub(/[ \t]+$/, "", into[i]) }
    return n
}
function table_row(line, tag,    parts, n, i) {
    n = cells(line, parts)
    printf "<tr>"
    for (i = 1; i <= n; i++) printf "<%s>%s</%s>", tag, inline(parts[i]), tag
    print "</tr>"
}

fenced && /^```/ { print "</code></pre>"; fenced = 0; next }
fenced { print escape($0); next }
/^```/ {
    close_all()
    file = $0 ~ / file=/ ? $0 : ""
    sub(/.* file=/, "", file)
    printf "%s<pre%s><code>", file == "" ? "" : "<p class=\"file\">" escape(file) "</p>", $0 ~ /^```text/ ? " class=\"printed\"" : ""
    fenced = 1
    next
}
/^<!--.*-->$/ { next }
/^    / && paragraph == "" && list == "" { close_table(); if (!indented) printf "<pre><code>"; indented = 1; print escape(substr($0, 5)); next }
indented { print "</code></pre>"; indented = 0 }
/^#+ / {
    close_all()
    level = length($1)
    text = substr($0, level + 2)
    printf "<h%d id=\"%s\">%s</h%d>\n", level, escape(anchor_of(text)), inline(text), level
    next
}
/^\|[-| :]+\|$/ && rows == 1 { next }
/^\|/ {
    close_list()
    if (!rows) { print "<div class=\"table\"><table><thead>"; table_row($0, "th"); print "</thead><tbody>" }
    else table_row($0, "td")
    rows++
    next
}
/^[ \t]*$/ { close_block(); close_table(); blank = 1; next }
/^(- |[0-9]+\. )/ {
    kind = /^-/ ? "ul" : "ol"
    close_block()
    close_table()
    if (list != kind) { close_list(); print "<" kind ">"; list = kind }
    printf "<li>"
    in_item = 1
    sub(/^(- |[0-9]+\. )/, "")
    paragraph = $0
    blank = 0
    next
}
{
    close_table()
    if (list != "" && !in_item && blank)
        close_list()
    sub(/^[ \t]+/, "")
    paragraph = paragraph == "" ? $0 : paragraph "\n" $0
    blank = 0
}
END { if (indented) print "</code></pre>"; if (fenced) { print "page.awk: a fence is not closed" >"/dev/stderr"; exit 1 } close_all() }
