/* Guesses what a misspelled word was meant to be, by edit distance with neighbouring letters swapped for one edit. */
#include <fsdp/flags.h>

#include <ctype.h>
#include <string.h>

enum { MAX_WORD = 64 };

static char folded(char c)
{
    return c == '-' ? '_' : (char)tolower((unsigned char)c);
}

static int min3(int a, int b, int c)
{
    int least = a < b ? a : b;
    return least < c ? least : c;
}

/* Optimal string alignment distance of words up to MAX_WORD long; longer ones are as far as can be. */
static int distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n > MAX_WORD || m > MAX_WORD)
        return MAX_WORD;
    int rows[3][MAX_WORD + 1];
    int *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t j = 0; j <= m; j++)
        above[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            bool same = folded(a[i - 1]) == folded(b[j - 1]);
            row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + !same);
            if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) && folded(a[i - 2]) == folded(b[j - 1]) &&
                before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
        int *free_row = before;
        before = above;
        above = row;
        row = free_row;
    }
    return above[m];
}

const char *fsdp_nearest(const char *word, const char *const *candidates, int n)
{
    int length = (int)strlen(word), least = 1 + (length < 4 ? 1 : length / 3);
    const char *best = NULL;
    for (int i = 0; i < n; i++) {
        int edits = distance(word, candidates[i]);
        if (edits < least) {
            least = edits;
            best = candidates[i];
        }
    }
    /* A part of a long name is far away by edits, and still the likeliest meaning. */
    for (int i = 0; !best && length >= 3 && i < n; i++)
        if (strstr(candidates[i], word))
            best = candidates[i];
    return best;
}
