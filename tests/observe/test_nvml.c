/* NVML's numbers of the GPUs that this host's driver lists are numbers that a GPU can have; without a GPU there are
 * none. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>

#include "observe/serve/nvml.h"

static void without_nvml_nothing_is_known(void **state)
{
    (void)state;
    gpu_state s = nvml_read(NULL, "0000:19:00.0");
    assert_true(isnan(s.utilization) && isnan(s.memory_used) && isnan(s.memory_total) && isnan(s.celsius));
    assert_true(isnan(s.watts) && isnan(s.watts_limit) && isnan(s.sm_hertz) && isnan(s.memory_hertz));
    nvml_close(NULL);
}

/* What a GPU does not tell (a part of one, for instance) is NaN. */
static void between(double value, double least, double most)
{
    if (!isnan(value) && (value < least || value > most))
        fail_msg("%g is not between %g and %g", value, least, most);
}

static void a_gpu_says_what_a_gpu_can_say(void **state)
{
    (void)state;
    nvml *n = nvml_open();
    DIR *gpus = n ? opendir("/proc/driver/nvidia/gpus") : NULL;
    int known = 0;
    for (struct dirent *d; gpus && (d = readdir(gpus));) {
        if (d->d_name[0] == '.')
            continue;
        gpu_state s = nvml_read(n, d->d_name);
        known += !isnan(s.memory_total);
        between(s.utilization, 0, 1);
        between(s.memory_total, 1e9, 1e13);
        between(s.memory_used, 0, s.memory_total);
        between(s.celsius, 1, 120);
        between(s.watts, 1, 3000);
        between(s.watts_limit, 10, 3000);
        between(s.sm_hertz, 1e7, 1e10);
        between(s.memory_hertz, 1e7, 1e11);
        print_message("%s: %.0f of %.0f bytes, %g C, %g of %g W, %g Hz\n", d->d_name, s.memory_used, s.memory_total,
                      s.celsius, s.watts, s.watts_limit, s.sm_hertz);
    }
    if (gpus)
        closedir(gpus);
    nvml_close(n);
    if (!known)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_nvml_nothing_is_known),
        cmocka_unit_test(a_gpu_says_what_a_gpu_can_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
