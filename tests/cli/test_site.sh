#!/bin/bash
# The guides as a site: every page in both languages, links and anchors that lead somewhere, nothing from other hosts, and code that
# is what the Markdown holds. The checks are checked: a page with a wrong link must be refused.
set -euo pipefail
source "$(dirname "$0")/support.bash"
"$source_root/scripts/guide-site" "$work/site" >said || fail "guide-site fails"
grep -qx "docs: $work/site/index.html" said || fail "it does not say where the site is: $(cat said)"
guide=$source_root/docs/guide

# wrong_links FOLDER: every address in its pages that leads nowhere
wrong_links()
{
    local page address file anchor
    for page in "$1"/*.html "$1"/*/*.html; do
        while IFS= read -r address; do
            case $address in http://* | https://*) continue ;; esac
            file=${address%%#*} anchor=
            [[ $address == *#* ]] && anchor=${address#*#}
            file=${file:+$(dirname "$page")/$file} file=${file:-$page}
            if [[ ! -f $file ]]; then
                echo "${page#"$1"/}: $address"
            elif [[ -n $anchor ]] && ! grep -qF "id=\"$anchor\"" "$file"; then
                echo "${page#"$1"/}: $address (no such place)"
            fi
        done < <(grep -oE '(href|src)="[^"]*"' "$page" | sed 's/^[a-z]*="//; s/"$//')
    done
}
wrong=$(wrong_links "$work/site")
[[ -z $wrong ]] || fail "links that lead nowhere: $wrong"
cp -r site broken
sed -i 's|</main>|<a href="nowhere.html">x</a><a href="#none">y</a></main>|' broken/en/how-fast.html
[[ $(wrong_links "$work/broken" | wc -l) == 2 ]] || fail "wrong links pass"

! grep -nE '<(script|link|img|iframe)[^>]*(src|href)="(https?:)?//|@import|url\(' site/*.html site/*/*.html site/style.css site/theme.js || fail "something comes from another host"
for language in en ko; do
    for source in "$guide/$language"/*.md; do
        name=$(basename "$source" .md) other=$([[ $language == en ]] && echo ko || echo en)
        page=site/$language/$name.html
        [[ -s $page ]] || fail "no $page"
        grep -q "<html lang=\"$language\">" "$page" || fail "$page: another language"
        grep -q "href=\"../$other/$name.html\"" "$page" || fail "$page: no way to the other language"
        grep -q "href=\"$language/$name.html\"" site/index.html || fail "the first page does not name $page"
        # Code arrives as it was written.
        awk '/^```/ { inside = !inside; next } inside' "$source" >written
        awk '/<pre[^>]*><code>/ { inside = 1; sub(/.*<pre[^>]*><code>/, "") } /<\/code><\/pre>/ { inside = 0 } inside' "$page" |
            sed 's/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&amp;/\&/g' >shown
        cmp written shown || fail "$page: its code is not the page's"
        # No Markdown is left over in text.
        ! sed -e '/<pre/,/<\/pre>/d' -e 's/<span>\([^<]*\)<\/span>/\1/g' -e 's/<code>[^<]*<\/code>//g' "$page" | grep -nE '\]\(|\*\*|^\||^#+ |`' || fail "$page: Markdown that was not understood"
    done
done
# A flag in text is never broken behind its dashes.
grep -q '<code><span>--deepspeed</span> FILE</code>' site/en/coming-from.html || fail "flags may be broken over two lines"
if python3 -c 'import xml.dom.minidom' 2>/dev/null; then
    for page in site/*.html site/*/*.html; do
        python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$page" 2>error || fail "$page: $(tail -n 1 error)"
    done
else
    echo "no python3: whether tags are closed is not checked"
fi
echo "$(find site -name '*.html' | wc -l) pages, $(cat site/*.html site/*/*.html | grep -o 'href="' | wc -l) links"
