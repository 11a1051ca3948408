/* The same on a GPU, where copies run beside the computation and, from the third step on, inside recorded graphs. */
#include "training/offload_run.h"

#include <stdio.h>

static void activations_away_change_no_bit_and_free_the_gpu(void **state)
{
    (void)state;
    for (int t5 = 0; t5 < 2; t5++) {
        for (int level = FSDP_CHECKPOINT_FULL; level <= FSDP_CHECKPOINT_SELECTIVE; level++) {
            fsdp_config c = FSDP_CONFIG_INIT;
            c.checkpointing = (fsdp_checkpointing)level;
            c.deterministic = true;
            assert_same_bits_in_less_memory("cuda", t5, c);
            c.param_dtype = FSDP_BF16;
            assert_same_bits_in_less_memory("cuda", t5, c);
        }
    }
}

int main(void)
{
    device *dev;
    if (device_open_cuda(0, &dev) != FSDP_OK) {
        printf("no CUDA device: %s\n", fsdp_last_error());
        return 0;
    }
    device_close(dev);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_away_change_no_bit_and_free_the_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
