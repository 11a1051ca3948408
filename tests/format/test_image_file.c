/* IDX and CIFAR files and pictures: read as written, refused when they lie. */
#include "format/compress.h"

#include <zlib.h>

#include "format/image/image_file.h"
#include "format/image/picture.h"

/* An IDX file of bytes: 0, 1, 2, ... modulo `modulo`. free() it. */
static uint8_t *make_idx(int n_dims, const uint32_t *dims, unsigned modulo, size_t *bytes)
{
    size_t data_bytes = 1, header = 4 + 4 * (size_t)n_dims;
    for (int i = 0; i < n_dims; i++)
        data_bytes *= dims[i];
    uint8_t *file = calloc(1, header + data_bytes);
    file[2] = 8;
    file[3] = (uint8_t)n_dims;
    for (int i = 0; i < n_dims; i++)
        for (int k = 0; k < 4; k++)
            file[4 + 4 * i + k] = (uint8_t)(dims[i] >> (24 - 8 * k));
    for (size_t i = 0; i < data_bytes; i++)
        file[header + i] = (uint8_t)(i % modulo);
    *bytes = header + data_bytes;
    return file;
}

static void write_idx(const char *path, int n_dims, const uint32_t *dims, unsigned modulo, int gzip)
{
    size_t bytes, packed_bytes;
    uint8_t *file = make_idx(n_dims, dims, modulo, &bytes);
    if (gzip) {
        uint8_t *packed = compress_gzip(file, bytes, &packed_bytes);
        scratch_write(path, packed, packed_bytes);
        free(packed);
    } else {
        scratch_write(path, file, bytes);
    }
    free(file);
}

static void assert_digits(const image_set *set, int64_t n, int height, int width)
{
    assert_int_equal(set->n_images, n);
    assert_int_equal(set->channels, 1);
    assert_int_equal(set->height, height);
    assert_int_equal(set->width, width);
    assert_int_equal(set->n_classes, 7);
    for (int64_t i = 0; i < n * height * width; i++)
        assert_int_equal(set->pixels[i], i % 251);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(set->labels[i], i % 7);
}

static void idx_files_read_plain_and_gzipped(void **state)
{
    (void)state;
    image_set set;
    const char *images = scratch_path("images"), *labels = scratch_path("labels.gz");
    write_idx(images, 3, (uint32_t[]){2001, 28, 27}, 251, 0); /* more than a first buffer */
    write_idx(labels, 1, (uint32_t[]){2001}, 7, 1);
    assert_ok(image_set_read_idx(images, labels, &set));
    assert_digits(&set, 2001, 28, 27);
    image_set_free(&set);
    image_set_free(&set);
}

static void idx_truncations_at_every_byte_are_refused(void **state)
{
    (void)state;
    size_t bytes;
    image_set set;
    const char *images = scratch_path("images"), *labels = scratch_path("labels");
    uint8_t *file = make_idx(3, (uint32_t[]){4, 3, 5}, 251, &bytes);
    write_idx(labels, 1, (uint32_t[]){4}, 7, 0);
    for (size_t cut = 0; cut < bytes; cut++) {
        scratch_write(images, file, cut);
        assert_fails(FSDP_ERR_INPUT, image_set_read_idx(images, labels, &set), images);
        assert_null(set.pixels);
    }
    file = realloc(file, bytes + 1);
    file[bytes] = 0;
    scratch_write(images, file, bytes + 1);
    assert_fails(FSDP_ERR_INPUT, image_set_read_idx(images, labels, &set), images, "is longer than");
    free(file);
}

static void lying_idx_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint8_t bytes[4];
        const char *reason;
    } lies[] = {
        {0, {0, 0, 8, 1}, "not an IDX file"},
        {0, {0, 0, 13, 3}, "not an IDX file"},
        {0, {1, 0, 8, 3}, "not an IDX file"},
        {4, {255, 255, 255, 255}, "truncated"},
        {4, {0, 0, 0, 0}, "dimension 0 is 0"},
        {8, {0, 0, 0, 0}, "dimension 1 is 0"},
        {8, {255, 255, 255, 255}, "dimension 1 is 4294967295"},
        {12, {0, 255, 0, 0}, "dimension 2"},
        {4, {0, 0, 0, 3}, "is longer than"},
    };
    image_set set;
    const char *images = scratch_path("images"), *labels = scratch_path("labels");
    write_idx(labels, 1, (uint32_t[]){4}, 7, 0);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        size_t bytes;
        uint8_t *file = make_idx(3, (uint32_t[]){4, 3, 5}, 251, &bytes);
        memcpy(file + lies[i].at, lies[i].bytes, 4);
        scratch_write(images, file, bytes);
        assert_fails(FSDP_ERR_INPUT, image_set_read_idx(images, labels, &set), images, lies[i].reason);
        free(file);
    }
    write_idx(images, 3, (uint32_t[]){5, 3, 5}, 251, 0);
    assert_fails(FSDP_ERR_INPUT, image_set_read_idx(images, labels, &set), images, labels, "5 images", "4 labels");
    assert_fails(FSDP_ERR_INPUT, image_set_read_idx(labels, images, &set), labels);
    assert_fails(FSDP_ERR_INPUT, image_set_read_idx(images, scratch_path("absent"), &set), "absent");
}

/* A batch of n records whose labels count from `first` on, modulo 10. */
static void write_cifar(const char *path, int n, int first, size_t cut, int bad_label)
{
    size_t bytes = (size_t)n * 3073;
    uint8_t *file = malloc(bytes);
    for (int i = 0; i < n; i++) {
        memset(file + i * 3073, first + i, 3073);
        file[i * 3073] = (uint8_t)((first + i) % 10);
    }
    if (bad_label)
        file[3073] = 10;
    scratch_write(path, file, bytes - cut);
    free(file);
}

static void cifar_batches_are_joined_in_order(void **state)
{
    (void)state;
    image_set set;
    const char *folder = scratch_path("joined");
    assert_ok(file_make_directories(folder));
    write_cifar(scratch_path("joined/data_batch_1.bin"), 11, 0, 0, 0);
    write_cifar(scratch_path("joined/data_batch_2.bin"), 3, 11, 0, 0);
    assert_ok(image_set_read_folder(folder, NULL, true, &set));
    assert_int_equal(set.n_images, 14);
    assert_int_equal(set.channels, 3);
    assert_int_equal(set.height, 32);
    assert_int_equal(set.width, 32);
    assert_int_equal(set.n_classes, 10);
    for (int i = 0; i < 14; i++) {
        assert_int_equal(set.labels[i], i % 10);
        assert_int_equal(set.pixels[i * 3072], i);
        assert_int_equal(set.pixels[i * 3072 + 3071], i);
    }
    image_set_free(&set);
}

static void broken_cifar_batches_are_refused(void **state)
{
    (void)state;
    image_set set;
    const char *folder = scratch_path("bad"), *path = scratch_path("bad/test_batch.bin");
    assert_ok(file_make_directories(folder));
    write_cifar(path, 2, 0, 1, 0);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(folder, NULL, false, &set), path, "image 1");
    write_cifar(path, 2, 0, 3072, 0);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(folder, NULL, false, &set), path, "image 1");
    write_cifar(path, 2, 0, 0, 1);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(folder, NULL, false, &set), path, "label 10");
    scratch_write(path, "", 0);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(folder, NULL, false, &set), path, "image 0");
}

static void folders_are_read_by_their_usual_names(void **state)
{
    (void)state;
    image_set set;
    const char *folder = scratch_path("mnist");
    assert_ok(file_make_directories(folder));
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(folder, NULL, true, &set), folder, "train-images-idx3-ubyte",
                 "data_batch_1.bin");
    write_idx(scratch_path("mnist/train-images-idx3-ubyte.gz"), 3, (uint32_t[]){9, 4, 5}, 251, 1);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(folder, NULL, true, &set), folder, "not the labels");
    write_idx(scratch_path("mnist/train-labels.idx1-ubyte"), 1, (uint32_t[]){9}, 7, 0);
    assert_ok(image_set_read_folder(folder, NULL, true, &set));
    assert_digits(&set, 9, 4, 5);
    image_set_free(&set);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(folder, NULL, false, &set), "t10k", "test_batch.bin");
    assert_ok(file_make_directories(scratch_path("cifar")));
    write_cifar(scratch_path("cifar/data_batch_1.bin"), 4, 0, 0, 0);
    write_cifar(scratch_path("cifar/data_batch_2.bin"), 5, 4, 0, 0);
    write_cifar(scratch_path("cifar/test_batch.bin"), 6, 50, 0, 0);
    assert_ok(image_set_read_folder(scratch_path("cifar"), NULL, true, &set));
    assert_int_equal(set.n_images, 9);
    assert_int_equal(set.pixels[8 * 3072], 8);
    image_set_free(&set);
    assert_ok(image_set_read_folder(scratch_path("cifar"), NULL, false, &set));
    assert_int_equal(set.n_images, 6);
    assert_int_equal(set.pixels[0], 50);
    image_set_free(&set);
    write_cifar(scratch_path("cifar/data_batch_9.bin"), 1, 0, 0, 0); /* those between are missing, not absent */
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(scratch_path("cifar"), NULL, true, &set), "data_batch_9.bin",
                 "not the batch before it");
}

static void emnist_is_read_by_split(void **state)
{
    (void)state;
    image_set set;
    const char *folder = scratch_path("emnist");
    assert_ok(file_make_directories(folder));
    write_idx(scratch_path("emnist/emnist-letters-train-images-idx3-ubyte.gz"), 3, (uint32_t[]){9, 4, 5}, 251, 1);
    write_idx(scratch_path("emnist/emnist-letters-train-labels-idx1-ubyte.gz"), 1, (uint32_t[]){9}, 7, 1);
    assert_true(image_folder_has(folder, true));
    assert_false(image_folder_has(folder, false));
    assert_ok(image_set_read_folder(folder, NULL, true, &set));
    assert_digits(&set, 9, 4, 5);
    image_set_free(&set);
    write_idx(scratch_path("emnist/emnist-digits-train-images-idx3-ubyte"), 3, (uint32_t[]){3, 4, 5}, 251, 0);
    write_idx(scratch_path("emnist/emnist-digits-train-labels-idx1-ubyte"), 1, (uint32_t[]){3}, 2, 0);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(folder, NULL, true, &set), "--dataset_config_name");
    assert_ok(image_set_read_folder(folder, "digits", true, &set));
    assert_int_equal(set.n_images, 3);
    image_set_free(&set);
}

static void cifar100_has_its_fine_labels(void **state)
{
    (void)state;
    image_set set;
    uint8_t records[2 * 3074];
    const char *folder = scratch_path("cifar-100-binary");
    assert_ok(file_make_directories(folder));
    memset(records, 5, sizeof records);
    records[1] = 99;
    records[3074 + 1] = 42;
    scratch_write(scratch_path("cifar-100-binary/train.bin"), records, sizeof records);
    assert_false(image_folder_has(folder, true)); /* may be tokens */
    scratch_write(scratch_path("cifar-100-binary/fine_label_names.txt"), "apple\n", 6);
    assert_ok(image_set_read_folder(folder, NULL, true, &set));
    assert_int_equal(set.n_images, 2);
    assert_int_equal(set.n_classes, 100);
    assert_int_equal(set.labels[0], 99);
    assert_int_equal(set.labels[1], 42);
    assert_int_equal(set.pixels[6143], 5);
    image_set_free(&set);
}

/* As Python 2 and numpy wrote the batches that torchvision unpacks. */
static void write_pickle(const char *path, const char *labels_key, int n, const char *type, int label)
{
    uint8_t *file = malloc((size_t)n * 3072 + 1000), *at = file;
#define PUT(text) (memcpy(at, text, sizeof text - 1), at += sizeof text - 1)
    PUT("\x80\x02}q\x01(U\x04"
        "dataq\x02"
        "cnumpy.core.multiarray\n_reconstruct\nq\x03"
        "cnumpy\nndarray\nq\x04K\x00\x85U\x01"
        "bq\x05\x87Rq\x06(K\x01K");
    *at++ = (uint8_t)n;
    PUT("M\x00\x0c\x86"
        "cnumpy\ndtype\nq\x07U\x02");
    memcpy(at, type, 2);
    at += 2;
    PUT("K\x00K\x01\x87Rq\x08(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T");
    uint32_t bytes = (uint32_t)n * 3072;
    memcpy(at, &bytes, 4);
    at += 4;
    for (uint32_t i = 0; i < bytes; i++)
        *at++ = (uint8_t)(i % 253);
    PUT("tbU");
    *at++ = (uint8_t)strlen(labels_key);
    memcpy(at, labels_key, strlen(labels_key));
    at += strlen(labels_key);
    PUT("](");
    for (int i = 0; i < n; i++) {
        *at++ = 'K';
        *at++ = (uint8_t)(label + i);
    }
    PUT("eu.");
    scratch_write(path, file, (size_t)(at - file));
    free(file);
}

static void pickled_batches_are_read_as_data(void **state)
{
    (void)state;
    image_set set;
    assert_ok(file_make_directories(scratch_path("cifar-10-batches-py")));
    scratch_write(scratch_path("cifar-10-batches-py/batches.meta"), "", 0);
    write_pickle(scratch_path("cifar-10-batches-py/data_batch_1"), "labels", 3, "u1", 2);
    write_pickle(scratch_path("cifar-10-batches-py/data_batch_2"), "labels", 1, "u1", 9);
    assert_ok(image_set_read_folder(scratch_path("cifar-10-batches-py"), NULL, true, &set));
    assert_int_equal(set.n_images, 4);
    assert_int_equal(set.n_classes, 10);
    assert_memory_equal(set.labels, ((uint8_t[]){2, 3, 4, 9}), 4);
    for (int i = 0; i < 3 * 3072; i++)
        assert_int_equal(set.pixels[i], i % 253);
    image_set_free(&set);
    write_pickle(scratch_path("cifar-10-batches-py/data_batch_2"), "labels", 1, "u1", 10);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(scratch_path("cifar-10-batches-py"), NULL, true, &set),
                 "data_batch_2", "label 10");
    write_pickle(scratch_path("cifar-10-batches-py/data_batch_2"), "labels", 1, "f4", 1);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(scratch_path("cifar-10-batches-py"), NULL, true, &set),
                 "not a CIFAR-10 pickle");
    static const char evil[] = "\x80\x02"
                               "cposix\nsystem\nU\x04"
                               "true\x85R.";
    scratch_write(scratch_path("cifar-10-batches-py/data_batch_2"), evil, sizeof evil - 1);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(scratch_path("cifar-10-batches-py"), NULL, true, &set),
                 "data_batch_2", "posix");
    assert_ok(file_make_directories(scratch_path("cifar-100-python")));
    scratch_write(scratch_path("cifar-100-python/meta"), "", 0);
    write_pickle(scratch_path("cifar-100-python/train"), "fine_labels", 2, "u1", 98);
    assert_ok(image_set_read_folder(scratch_path("cifar-100-python"), NULL, true, &set));
    assert_memory_equal(set.labels, ((uint8_t[]){98, 99}), 2);
    image_set_free(&set);
}

/* A PNG whose rows have every filter in turn; `colour` as in its header. */
static void write_png(const char *path, int colour, int step, int width, int height, const uint8_t *samples)
{
    size_t row = (size_t)width * (size_t)step, n = 0, packed_bytes;
    uint8_t *rows = malloc((row + 1) * (size_t)height), *packed = malloc(2 * (row + 1) * (size_t)height + 100);
    for (int y = 0; y < height; y++) {
        int filter = y % 5;
        rows[n++] = (uint8_t)filter;
        for (size_t i = 0; i < row; i++) {
            const uint8_t *s = samples + (size_t)y * row + i;
            int a = i >= (size_t)step ? s[-step] : 0, b = y > 0 ? s[-(ptrdiff_t)row] : 0;
            int c = i >= (size_t)step && y > 0 ? s[-(ptrdiff_t)row - step] : 0, p = a + b - c;
            int pa = abs(p - a), pb = abs(p - b), pc = abs(p - c);
            int guess = filter == 0            ? 0
                        : filter == 1          ? a
                        : filter == 2          ? b
                        : filter == 3          ? (a + b) / 2
                        : pa <= pb && pa <= pc ? a
                        : pb <= pc             ? b
                                               : c;
            rows[n++] = (uint8_t)(*s - guess);
        }
    }
    uLongf room = (uLongf)(2 * n + 100);
    assert_int_equal(compress(packed, &room, rows, n), Z_OK);
    packed_bytes = room;
    uint8_t *file = calloc(1, packed_bytes + 2000), *at = file;
    PUT("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0");
    *at++ = (uint8_t)width;
    PUT("\0\0\0");
    *at++ = (uint8_t)height;
    *at++ = 8;
    *at++ = (uint8_t)colour;
    PUT("\0\0\0\0\0\0\0"); /* compression, filter, interlace; a checksum that is not looked at */
    if (colour == 3) {
        PUT("\0\0\3\0PLTE");
        for (int i = 0; i < 768; i++)
            *at++ = (uint8_t)(255 - i / 3);
        PUT("\0\0\0\0");
    }
    for (size_t done = 0; done < packed_bytes;) { /* in two chunks */
        size_t part = done == 0 ? packed_bytes / 2 : packed_bytes - done;
        for (int k = 3; k >= 0; k--)
            *at++ = (uint8_t)(part >> (8 * k));
        PUT("IDAT");
        memcpy(at, packed + done, part);
        at += part;
        PUT("\0\0\0\0");
        done += part;
    }
    PUT("\0\0\0\0IEND\0\0\0\0");
    scratch_write(path, file, (size_t)(at - file));
    free(file);
    free(rows);
    free(packed);
}

static void pictures_in_folders_are_classes_in_order(void **state)
{
    (void)state;
    enum { W = 7, H = 11 };
    image_set set;
    uint8_t samples[W * H * 4], ppm[11 + W * H * 3 + 4];
    for (size_t i = 0; i < sizeof samples; i++)
        samples[i] = (uint8_t)(i * i * 37 + i);
    assert_ok(file_make_directories(scratch_path("pictures/train/cat")));
    assert_ok(file_make_directories(scratch_path("pictures/train/ant/deeper")));
    assert_ok(file_make_directories(scratch_path("pictures/val/ant")));
    write_png(scratch_path("pictures/train/cat/a.png"), 2, 3, W, H, samples);
    write_png(scratch_path("pictures/train/cat/b.PNG"), 6, 4, W, H, samples);
    write_png(scratch_path("pictures/train/ant/deeper/p.png"), 3, 1, W, H, samples);
    int n = snprintf((char *)ppm, sizeof ppm, "P6\n#c\n%d %d\n255\n", W, H);
    memcpy(ppm + n, samples, W * H * 3);
    scratch_write(scratch_path("pictures/train/ant/x.ppm"), ppm, (size_t)n + W * H * 3);
    scratch_write(scratch_path("pictures/val/ant/x.ppm"), ppm, (size_t)n + W * H * 3);
    assert_true(image_folder_has(scratch_path("pictures"), true) && image_folder_has(scratch_path("pictures"), false));
    assert_ok(image_set_read_folder(scratch_path("pictures"), NULL, true, &set));
    assert_int_equal(set.n_images, 4);
    assert_int_equal(set.n_classes, 2);
    assert_int_equal(set.channels, 3);
    assert_memory_equal(set.labels, ((uint8_t[]){0, 0, 1, 1}), 4);
    for (int i = 0; i < W * H; i++) {
        for (int c = 0; c < 3; c++) {
            assert_int_equal(set.pixels[(0 * 3 + c) * W * H + i], 255 - samples[i]); /* the palette */
            assert_int_equal(set.pixels[(1 * 3 + c) * W * H + i], samples[3 * i + c]);
            assert_int_equal(set.pixels[(2 * 3 + c) * W * H + i], samples[3 * i + c]);
            assert_int_equal(set.pixels[(3 * 3 + c) * W * H + i], samples[4 * i + c]);
        }
    }
    image_set_free(&set);
    write_png(scratch_path("pictures/train/cat/c.png"), 0, 1, W, H, samples);
    assert_ok(image_set_read_folder(scratch_path("pictures"), NULL, true, &set));
    assert_int_equal(set.n_images, 5);
    for (int i = 0; i < 3 * W * H; i++)
        assert_int_equal(set.pixels[4 * 3 * W * H + i], samples[i % (W * H)]); /* grey */
    image_set_free(&set);
    write_png(scratch_path("pictures/train/cat/c.png"), 0, 1, W - 1, H, samples);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(scratch_path("pictures"), NULL, true, &set), "c.png is 6 x 11",
                 "p.png is 7 x 11");
    scratch_write(scratch_path("pictures/train/cat/c.png"), "\xff\xd8\xff\xe0 jpeg", 9);
    assert_fails(FSDP_ERR_UNSUPPORTED, image_set_read_folder(scratch_path("pictures"), NULL, true, &set), "c.png",
                 "convert others");
    write_png(scratch_path("pictures/train/cat/c.png"), 0, 1, W, H, samples);
    write_png(scratch_path("pictures/train/overview.png"), 0, 1, 2 * W, H, samples); /* in no class */
    assert_ok(image_set_read_folder(scratch_path("pictures"), NULL, true, &set));
    assert_int_equal(set.n_images, 5);
    image_set_free(&set);
    assert_ok(file_make_directories(scratch_path("pictures/train/dog")));
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(scratch_path("pictures"), NULL, true, &set), "train/dog",
                 "has no pictures");
    assert_ok(file_make_directories(scratch_path("notes/figures")));
    scratch_write(scratch_path("notes/figures/a.png"), "", 0);
    scratch_write(scratch_path("notes/text.md"), "text", 4);
    assert_false(image_folder_has(scratch_path("notes"), true)); /* an illustration */
}

static void broken_pictures_are_refused(void **state)
{
    (void)state;
    uint8_t samples[5 * 5 * 3], *file;
    char *text;
    size_t bytes;
    picture p;
    const char *path = scratch_path("broken.png");
    memset(samples, 77, sizeof samples);
    write_png(path, 2, 3, 5, 5, samples);
    assert_ok(file_read(path, &text, &bytes));
    file = (uint8_t *)text;
    for (size_t cut = 0; cut + 12 < bytes; cut++) { /* up to the end mark, which says nothing */
        scratch_write(path, file, cut);
        assert_int_not_equal(picture_read(path, &p), FSDP_OK);
        assert_null(p.pixels);
    }
    for (size_t i = 8; i < bytes; i++) { /* any outcome but a crash */
        file[i] ^= 0x41;
        scratch_write(path, file, bytes);
        if (picture_read(path, &p) == FSDP_OK)
            free(p.pixels);
        file[i] ^= 0x41;
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idx_files_read_plain_and_gzipped), cmocka_unit_test(idx_truncations_at_every_byte_are_refused),
        cmocka_unit_test(lying_idx_headers_are_refused),    cmocka_unit_test(cifar_batches_are_joined_in_order),
        cmocka_unit_test(broken_cifar_batches_are_refused), cmocka_unit_test(folders_are_read_by_their_usual_names),
        cmocka_unit_test(emnist_is_read_by_split),          cmocka_unit_test(cifar100_has_its_fine_labels),
        cmocka_unit_test(pickled_batches_are_read_as_data), cmocka_unit_test(pictures_in_folders_are_classes_in_order),
        cmocka_unit_test(broken_pictures_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
