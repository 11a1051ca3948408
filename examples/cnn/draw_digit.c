/* Digits from a font of 5 x 7 dots, stretched, slanted and smudged. */
#include "draw_digit.h"

#include <math.h>

enum { ROWS = 7, COLUMNS = 5 };

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

int draw_digit(uint64_t *state, uint8_t *image)
{
    int digit = (int)uniform(state, 0, 10);
    double height = uniform(state, 15, 23), width = uniform(state, 11, 17), slant = uniform(state, -0.25, 0.25);
    double top = uniform(state, 1, DIGIT_SIDE - 1 - height), left = uniform(state, 2, DIGIT_SIDE - 2 - width);
    double stroke = uniform(state, 0.6, 0.9), light = uniform(state, 150, 255);
    for (int y = 0; y < DIGIT_SIDE; y++) {
        for (int x = 0; x < DIGIT_SIDE; x++) {
            double row = (y - top) / height * (ROWS - 1), lean = slant * (y - top - height / 2);
            double column = (x - left + lean) / width * (COLUMNS - 1);
            double value = light * ink(digit, row, column, stroke) + uniform(state, 0, 40);
            image[y * DIGIT_SIDE + x] = (uint8_t)fmin(255, value);
        }
    }
    return digit;
}
