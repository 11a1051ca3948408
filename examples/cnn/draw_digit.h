/* Pictures of digits as MNIST has them, made up: each with its own size, place, slant, stroke and noise. */
#ifndef DRAW_DIGIT_H
#define DRAW_DIGIT_H

#include <stdint.h>

enum { DIGIT_SIDE = 28, DIGIT_PIXELS = DIGIT_SIDE * DIGIT_SIDE };

/* Draws the next digit of a random sequence and returns which of 0 to 9 it is. The same state gives the same picture,
 * and moves on. */
int draw_digit(uint64_t *state, uint8_t *image);

#endif
