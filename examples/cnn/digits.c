/* digits FOLDER TRAINING TEST writes so many made-up pictures of digits as IDX files, the format of MNIST. The same
 * pictures every time. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "draw_digit.h"

static FILE *begin(const char *folder, const char *part, const char *name, int n_sizes, const uint32_t *sizes)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-%s", folder, part, name);
    FILE *out = fopen(path, "wb");
    if (!out) {
        perror(path);
        exit(1);
    }
    uint8_t head[4] = {0, 0, 8, (uint8_t)n_sizes};
    fwrite(head, 1, 4, out);
    for (int i = 0; i < n_sizes; i++) {
        uint8_t big[4] = {(uint8_t)(sizes[i] >> 24), (uint8_t)(sizes[i] >> 16), (uint8_t)(sizes[i] >> 8),
                          (uint8_t)sizes[i]};
        fwrite(big, 1, 4, out);
    }
    return out;
}

static void write_part(const char *folder, const char *part, int n, uint64_t seed)
{
    uint32_t sizes[] = {(uint32_t)n, DIGIT_SIDE, DIGIT_SIDE};
    FILE *images = begin(folder, part, "images-idx3-ubyte", 3, sizes),
         *labels = begin(folder, part, "labels-idx1-ubyte", 1, sizes);
    for (int i = 0; i < n; i++) {
        uint8_t image[DIGIT_PIXELS], digit = (uint8_t)draw_digit(&seed, image);
        fwrite(image, 1, sizeof image, images);
        fwrite(&digit, 1, 1, labels);
    }
    if (fclose(images) != 0 || fclose(labels) != 0) {
        perror(folder);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: digits FOLDER TRAINING TEST\n");
        return 2;
    }
    write_part(argv[1], "train", atoi(argv[2]), 1);
    write_part(argv[1], "t10k", atoi(argv[3]), 2);
    return 0;
}
