# Shows our headers to Doxygen: plain comments become documentation. The first comment is the file's; one in front of a
# declaration, or behind it on the line, is that declaration's. Indented lines of a comment are code. With `check` it
# prints only what is wrong: public functions without a comment.

# What Doxygen and Markdown would take for their own, between `quotes` of code as it is.
function escaped(line,    n, i, parts, out) {
    n = split(line, parts, "`")
    for (i = 1; i <= n; i++) {
        if (i % 2 == 1)
            gsub(/[\\@#<>&*%]/, "\\\\&", parts[i])
        out = out (i > 1 ? "`" : "") parts[i]
    }
    return out
}

# One line of a comment's text, without its frame.
function text(line) {
    if (line ~ /^     *[^ ]/) {
        if (!code)
            line = "@code{.c}\n" line
        code = 1
        return line
    }
    line = escaped(line)
    if (code && line !~ /^ *$/) {
        code = 0
        line = "@endcode\n" line
    }
    return line
}

# A comment from its frame's inside: `lines` separated by newlines.
function comment(opening, lines,    n, i, parts, out, line) {
    n = split(lines, parts, "\n")
    code = 0
    out = opening
    for (i = 1; i <= n; i++) {
        line = parts[i]
        if (i > 1)
            sub(/^ *\* ?/, "", line)
        out = out (i > 1 || opening ~ /@file/ ? "\n" : " ") text(line)
    }
    return out (code ? "\n@endcode" : "") " */"
}

# Reads on to the end of a comment whose first line is `first`, behind its opening.
function rest_of_comment(first,    lines, more) {
    lines = first
    while (lines !~ /\*\//) {
        if ((getline more) <= 0)
            break
        lines = lines "\n" more
    }
    sub(/ *\*\/[^\n]*$/, "", lines)
    return lines
}

function emit(line) {
    if (!check)
        print line
}

# Our own line, or one that was read ahead.
function next_line() {
    if (ahead != "") {
        $0 = ahead
        ahead = ""
        return 1
    }
    return (getline) > 0
}

# A public function, to its semicolon, and the comment behind it.
function prototype(    statement, behind, at, line) {
    statement = $0
    at = FNR
    while (statement !~ /;/) {
        if ((getline line) <= 0)
            break
        statement = statement "\n" line
    }
    behind = ""
    if (match(statement, /; *\/\*/)) {
        behind = substr(statement, RSTART + RLENGTH)
        statement = substr(statement, 1, RSTART)
        sub(/^ */, "", behind)
        behind = rest_of_comment(behind)
    }
    if (front_comment == "" && behind == "") {
        line = statement
        sub(/\(.*/, "", line)
        sub(/.*[ *]/, "", line)
        if (check)
            printf "%s:%d: %s has no comment\n", FILENAME, at, line
    }
    if (behind != "")
        emit(comment("/**", behind))
    else if (front_comment != "")
        emit(front_comment)
    emit(statement)
    front_comment = ""
}

BEGIN {
    while (next_line()) {
        if (/^\/\* ?----/) {
            lines = rest_of_comment($0)
            front_comment = ""
        } else if (/^ *\/\*/) {
            first = $0
            sub(/^ *\/\* ?/, "", first)
            lines = rest_of_comment(first)
            if (!begun) {
                emit(comment("/** @file", lines))
            } else {
                front_comment = comment("/**", lines)
                if ((getline ahead) > 0 && ahead !~ /^FSDP_API/) {
                    emit(front_comment)
                    front_comment = ahead ~ /^ *$/ ? "" : front_comment
                }
            }
            begun = 1
        } else if (/^FSDP_API/) {
            prototype()
        } else if (/^#|\\$/) {
            emit($0)
            front_comment = ""
        } else if (match($0, /[^ ].*[;,{}] *\/\*/) && ($0 ~ /\*\/ *$/ || $0 !~ /\*\//)) {
            front = $0
            sub(/ *\/\*.*/, "", front)
            first = substr($0, RSTART + RLENGTH)
            sub(/^ */, "", first)
            emit(front " " comment("/**<", rest_of_comment(first)))
        } else if (match($0, /^ *[A-Z0-9_]+ *\/\*/) && ($0 ~ /\*\/ *$/ || $0 !~ /\*\//)) {
            front = $0
            sub(/ *\/\*.*/, "", front)
            first = substr($0, RSTART + RLENGTH)
            sub(/^ */, "", first)
            emit(front " " comment("/**<", rest_of_comment(first)))
        } else {
            emit($0)
            if (/^ *$/)
                front_comment = ""
        }
    }
}
