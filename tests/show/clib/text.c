#include "small.h"
size_t text_words(const char *text)
{
    size_t words = 0;
    for (int in = 0; *text; text++) {
        int letter = *text != ' ';
        words += letter && !in;
        in = letter;
    }
    return words;
}
