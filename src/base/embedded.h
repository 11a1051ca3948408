/* A file that the build put into the library as text: see fsdp_layer_embed in cmake/Layers.cmake. */
#ifndef BASE_EMBEDDED_H
#define BASE_EMBEDDED_H

typedef struct embedded_file {
    const char *name; /* of the file, without its folder; NULL: the table ends */
    const char *text;
} embedded_file;

#endif
