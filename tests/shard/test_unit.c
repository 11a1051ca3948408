/* The state machine of a unit: legal moves pass, every other is refused with the unit and both states named. */
#include "shard/stack.h"
#include "shard/step/unit.h"

static const layout_unit some_layout = {.name = (char *)"blocks.7"};

static void parameters_move_round_and_never_back(void **state)
{
    (void)state;
    static const char *const names[] = {"SHARDED", "GATHERING", "FULL"};
    for (int from = PARAMETERS_SHARDED; from <= PARAMETERS_FULL; from++) {
        for (int to = PARAMETERS_SHARDED; to <= PARAMETERS_FULL; to++) {
            unit u = {.layout = &some_layout, .parameters = (parameter_state)from};
            if (to == (from + 1) % 3) {
                assert_ok(unit_move_parameters(&u, (parameter_state)to));
                assert_int_equal(u.parameters, to);
                continue;
            }
            assert_status(FSDP_ERR_STATE, unit_move_parameters(&u, (parameter_state)to));
            assert_int_equal(u.parameters, from);
            assert_non_null(strstr(fsdp_last_error(), "blocks.7"));
            assert_non_null(strstr(fsdp_last_error(), names[from]));
            assert_non_null(strstr(fsdp_last_error(), names[to]));
        }
    }
}

static void gradients_are_reduced_only_when_full(void **state)
{
    (void)state;
    static const char legal[4][5] = {
        ".F..", /* NONE */
        ".FR.", /* FULL: again, when held over micro-batches */
        "...S", /* REDUCING */
        "NF..", /* SHARDED: given up, or added to by the next micro-batch */
    };
    for (int from = GRADIENTS_NONE; from <= GRADIENTS_SHARDED; from++) {
        for (int to = GRADIENTS_NONE; to <= GRADIENTS_SHARDED; to++) {
            unit u = {.layout = &some_layout, .gradients = (gradient_state)from};
            fsdp_status wanted = legal[from][to] == '.' ? FSDP_ERR_STATE : FSDP_OK;
            assert_status(wanted, unit_move_gradients(&u, (gradient_state)to));
            assert_int_equal(u.gradients, wanted == FSDP_OK ? to : from);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_move_round_and_never_back),
        cmocka_unit_test(gradients_are_reduced_only_when_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
