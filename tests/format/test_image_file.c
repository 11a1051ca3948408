/* IDX and CIFAR-10 files: read as written, refused when they lie. */
#include "format/compress.h"

#include "format/image_file.h"

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
    const char *paths[] = {scratch_path("b1"), scratch_path("b2")};
    write_cifar(paths[0], 11, 0, 0, 0);
    write_cifar(paths[1], 3, 11, 0, 0);
    assert_ok(image_set_read_cifar10(paths, 2, &set));
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
    const char *path = scratch_path("bad");
    write_cifar(path, 2, 0, 1, 0);
    assert_fails(FSDP_ERR_INPUT, image_set_read_cifar10(&path, 1, &set), path, "image 1");
    write_cifar(path, 2, 0, 3072, 0);
    assert_fails(FSDP_ERR_INPUT, image_set_read_cifar10(&path, 1, &set), path, "image 1");
    write_cifar(path, 2, 0, 0, 1);
    assert_fails(FSDP_ERR_INPUT, image_set_read_cifar10(&path, 1, &set), path, "label 10");
    scratch_write(path, "", 0);
    assert_fails(FSDP_ERR_INPUT, image_set_read_cifar10(&path, 1, &set), path, "image 0");
    assert_int_equal(image_set_read_cifar10(&path, 0, &set), FSDP_ERR_INPUT);
}

static void folders_are_read_by_their_usual_names(void **state)
{
    (void)state;
    image_set set;
    const char *folder = scratch_path("mnist");
    assert_ok(file_make_directories(folder));
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(folder, true, &set), folder, "train-images-idx3-ubyte",
                 "data_batch_1.bin");
    write_idx(scratch_path("mnist/train-images-idx3-ubyte.gz"), 3, (uint32_t[]){9, 4, 5}, 251, 1);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(folder, true, &set), folder, "not the labels");
    write_idx(scratch_path("mnist/train-labels.idx1-ubyte"), 1, (uint32_t[]){9}, 7, 0);
    assert_ok(image_set_read_folder(folder, true, &set));
    assert_digits(&set, 9, 4, 5);
    image_set_free(&set);
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(folder, false, &set), "t10k", "test_batch.bin");
    assert_ok(file_make_directories(scratch_path("cifar")));
    write_cifar(scratch_path("cifar/data_batch_1.bin"), 4, 0, 0, 0);
    write_cifar(scratch_path("cifar/data_batch_2.bin"), 5, 4, 0, 0);
    write_cifar(scratch_path("cifar/test_batch.bin"), 6, 50, 0, 0);
    assert_ok(image_set_read_folder(scratch_path("cifar"), true, &set));
    assert_int_equal(set.n_images, 9);
    assert_int_equal(set.pixels[8 * 3072], 8);
    image_set_free(&set);
    assert_ok(image_set_read_folder(scratch_path("cifar"), false, &set));
    assert_int_equal(set.n_images, 6);
    assert_int_equal(set.pixels[0], 50);
    image_set_free(&set);
    write_cifar(scratch_path("cifar/data_batch_9.bin"), 1, 0, 0, 0); /* those between are missing, not absent */
    assert_fails(FSDP_ERR_INPUT, image_set_read_folder(scratch_path("cifar"), true, &set), "data_batch_9.bin",
                 "batches up to it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idx_files_read_plain_and_gzipped), cmocka_unit_test(idx_truncations_at_every_byte_are_refused),
        cmocka_unit_test(lying_idx_headers_are_refused),    cmocka_unit_test(cifar_batches_are_joined_in_order),
        cmocka_unit_test(broken_cifar_batches_are_refused), cmocka_unit_test(folders_are_read_by_their_usual_names),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
