/* Runs jobs and reads what they left. */
#include "support_job.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/file.h"

static const char *const own_flags[] = {
    "--device=cpu",
    "--threads=1",
    "--model_type=llama_v3",
    "--hidden_width=16",
    "--num_layers=2",
    "--num_heads=2",
    "--intermediate_size=32",
    "--max_context_width=16",
    "--max_steps=4",
    "--train_batch_size=2",
    "--lr=0.01",
    "--lr_decay_style=constant",
    "--dataset=@text.txt",
    "--output_dir=@run",
    "--no_checkpoint_at_end=true",
    "--no_async_checkpoint=true",
    "--sharding_strategy=full",
};

enum { N_OWN = sizeof own_flags / sizeof *own_flags, MAX_FLAGS = 64 };

job *job_begin(void)
{
    job *j = calloc(1, sizeof *j);
    char text[JOB_SAMPLES * JOB_WIDTH], path[128];
    strcpy(j->folder, "/tmp/fsdp-job-XXXXXX");
    if (!mkdtemp(j->folder))
        abort();
    /* One document is followed by its end token: together exactly so many samples. */
    uint32_t state = 1;
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        state = state * 1664525 + 1013904223;
        text[i] = "abcdefgh ijklmnop"[state >> 24 & 15];
    }
    snprintf(path, sizeof path, "%s/text.txt", j->folder);
    FILE *out = fopen(path, "w");
    fwrite(text, 1, sizeof text - 1, out);
    fclose(out);
    return j;
}

static void remove_run(const job *j, const char *what)
{
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s%s'", j->folder, what);
    if (system(command) != 0)
        abort();
}

void job_end(job *j)
{
    remove_run(j, "");
    free(j);
}

char *job_file(const job *j, const char *name)
{
    char path[256], *text = NULL;
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", j->folder, name);
    return file_exists(path) && file_read(path, &text, &bytes) == FSDP_OK ? text : NULL;
}

void job_write(const job *j, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", j->folder, name);
    FILE *out = fopen(path, "w");
    fputs(text, out);
    fclose(out);
}

static int count_threads(void)
{
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *e; tasks && (e = readdir(tasks));)
        n += e->d_name[0] != '.';
    if (tasks)
        closedir(tasks);
    return n;
}

void job_hear(void *context, fsdp_line kind, const char *text)
{
    job *j = context;
    size_t used = strlen(j->said);
    snprintf(j->said + used, sizeof j->said - used, "%s\n", text);
    j->n_progress += kind == FSDP_LINE_PROGRESS;
    int n = count_threads();
    j->most_threads = n > j->most_threads ? n : j->most_threads;
}

static void read_metrics(job *j)
{
    char *text = job_file(j, "run/metrics.jsonl"), *rest = text;
    for (char *line; text && (line = strsep(&rest, "\n")) && *line && j->n_steps < JOB_MAX_STEPS;) {
        json_t *o = json_loads(line, 0, NULL);
        j->steps[j->n_steps++] = (job_step){.loss = json_number_value(json_object_get(o, "loss")),
                                            .lr = json_number_value(json_object_get(o, "lr")),
                                            .grad_norm = json_number_value(json_object_get(o, "grad_norm")),
                                            .samples = json_integer_value(json_object_get(o, "samples")),
                                            .tokens = json_integer_value(json_object_get(o, "tokens"))};
        json_decref(o);
    }
    free(text);
}

/* "--x=@y" becomes "--x=FOLDER/y"; "--no_x=true" of the own flags stands for "--no_x". */
static char *spelled(const job *j, const char *flag)
{
    const char *at = strstr(flag, "=@");
    char *out = NULL;
    if (strncmp(flag, "--no_", 5) == 0)
        return strndup(flag, strcspn(flag, "="));
    if (!at)
        return strdup(flag);
    return asprintf(&out, "%.*s=%s/%s", (int)(at - flag), flag, j->folder, at + 2) < 0 ? NULL : out;
}

void job_run(job *j, const char *const *flags)
{
    char *argv[MAX_FLAGS];
    int argc = 0;
    fsdp_settings settings;
    fsdp_train_callbacks callbacks = FSDP_TRAIN_CALLBACKS_INIT;
    remove_run(j, "/run");
    j->said[0] = j->error[0] = '\0';
    j->n_progress = j->n_steps = j->most_threads = 0;
    bool by_epochs = false;
    for (int i = 0; flags[i]; i++)
        by_epochs |= strncmp(flags[i], "--epochs=", 9) == 0;
    for (int i = 0; i < N_OWN; i++)
        if (!by_epochs || strncmp(own_flags[i], "--max_steps=", 12) != 0)
            argv[argc++] = spelled(j, own_flags[i]);
    for (int i = 0; flags[i]; i++)
        argv[argc++] = spelled(j, flags[i]);
    callbacks.context = j;
    callbacks.line = job_hear;
    j->result = (fsdp_train_result)FSDP_TRAIN_RESULT_INIT;
    j->status = fsdp_settings_init(&settings);
    if (j->status == FSDP_OK)
        j->status = fsdp_settings_parse(&settings, "train", argc, argv);
    if (j->status == FSDP_OK)
        j->status = fsdp_train(&settings, &callbacks, &j->result);
    if (j->status != FSDP_OK)
        snprintf(j->error, sizeof j->error, "%s", fsdp_last_error());
    fsdp_settings_free(&settings);
    for (int i = 0; i < argc; i++)
        free(argv[i]);
    read_metrics(j);
}

int job_setup(void **state)
{
    *state = job_begin();
    return 0;
}

int job_teardown(void **state)
{
    job_end(*state);
    return 0;
}
