/* Digits as MNIST has them, made up: digits FOLDER TRAINING TEST writes so many 28 x 28 images of 0 to 9 as IDX files,
 * each with its own size, place, slant, stroke and noise. The same images every time. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 28, ROWS = 7, COLUMNS = 5 };

static const char *const shapes[10][ROWS] = {
    {" ### ", "#   #", "#   #", "#   #", "#   #", "#   #", " ### "},
    {"  #  ", " ##  ", "# #  ", "  #  ", "  #  ", "  #  ", "#####"},
    {" ### ", "#   #", "    #", "   # ", "  #  ", " #   ", "#####"},
    {" ### ", "#   #", "    #", "  ## ", "    #", "#   #", " ### "},
    {"   # ", "  ## ", " # # ", "#  # ", "#####", "   # ", "   # "},
    {"#####", "#    ", "#### ", "    #", "    #", "#   #", " ### "},
    {" ### ", "#    ", "#    ", "#### ", "#   #", "#   #", " ### "},
    {"#####", "    #", "   # ", "   # ", "  #  ", "  #  ", "  #  "},
    {" ### ", "#   #", "#   #", " ### ", "#   #", "#   #", " ### "},
    {" ### ", "#   #", "#   #", " ####", "    #", "    #", " ### "},
};

/* Uniform in [low, high), from a linear congruential sequence. */
static double uniform(uint64_t *state, double low, double high)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * (double)(*state >> 40) / 16777216.0;
}

/* Ink at a point of the shape's grid, 0 to 1: the nearest stroke, soft at its edge. */
static double ink(int digit, double row, double column, double stroke)
{
    double nearest = 9;
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < COLUMNS; c++) {
            if (shapes[digit][r][c] == '#')
                nearest = fmin(nearest, hypot(row - r, column - c));
        }
    }
    return fmin(1, fmax(0, (stroke - nearest) * 3));
}

static void draw(int digit, uint64_t *state, uint8_t *image)
{
    double height = uniform(state, 15, 23), width = uniform(state, 11, 17), slant = uniform(state, -0.25, 0.25);
    double top = uniform(state, 1, SIDE - 1 - height), left = uniform(state, 2, SIDE - 2 - width);
    double stroke = uniform(state, 0.6, 0.9), light = uniform(state, 150, 255);
    for (int y = 0; y < SIDE; y++) {
        for (int x = 0; x < SIDE; x++) {
            double row = (y - top) / height * (ROWS - 1), lean = slant * (y - top - height / 2);
            double column = (x - left + lean) / width * (COLUMNS - 1);
            double value = light * ink(digit, row, column, stroke) + uniform(state, 0, 40);
            image[y * SIDE + x] = (uint8_t)fmin(255, value);
        }
    }
}

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
    uint32_t sizes[] = {(uint32_t)n, SIDE, SIDE};
    FILE *images = begin(folder, part, "images-idx3-ubyte", 3, sizes),
         *labels = begin(folder, part, "labels-idx1-ubyte", 1, sizes);
    for (int i = 0; i < n; i++) {
        uint8_t image[SIDE * SIDE], digit = (uint8_t)uniform(&seed, 0, 10);
        draw(digit, &seed, image);
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
