/* What the files of state share. */
#ifndef STATE_STATE_INTERNAL_H
#define STATE_STATE_INTERNAL_H

#include "ckpt/hot/hot.h"
#include "ckpt/save/save.h"
#include "state/model_state.h"
#include "state/state.h"
#include "state/values.h"

struct fsdp_state {
    fsdp_model *model;
    fsdp_optimizer *optimizer; /* NULL: none */
    comm_group *world;
    fsdp_data_position position;
    fsdp_loader *loader;         /* that `position` is of; NULL: the caller's own */
    char *directory, *tokenizer; /* NULL: none */
    json_t *model_json;          /* NULL: none */
    fsdp_checkpoint_kind kind;
    int keep;
    int64_t keep_every, max_file_bytes;
    state_notes notes;
    model_state *tensors;
    char *base;            /* the name by which checkpoints refer to the frozen base; NULL: they hold it */
    model_state *adapters; /* what they hold then; NULL likewise */
    value_list values;
    ckpt_saver *saver; /* NULL before the first background save */
    ckpt_hot *hot;     /* NULL: no snapshots are kept */
    ckpt_saver *hot_saver;
    json_t *loaded; /* `extra` of the checkpoint that was loaded last */
    char loaded_run[40];
    int loaded_ranks;
    char path[1024]; /* of the checkpoint that was saved or loaded last */
};

/* The end of a background save, where one is under way. The message of a failure is kept for state_tell_earlier. */
typedef struct earlier_save {
    fsdp_status status;
    char message[1024];
} earlier_save;
earlier_save state_finish_save(fsdp_state *s);
/* After the call's own work has ended with `now`: that status, or the earlier save's failure. */
fsdp_status state_tell_earlier(const earlier_save *earlier, fsdp_status now);

#endif
