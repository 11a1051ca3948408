/* Templates and their older relatives become one list of pieces for a single text. Pairs of texts are not encoded here,
 * so pair templates are not read. */
#include "tokenizer/postprocessor.h"

#include "tokenizer/component.h"

enum { POST_SEQUENCE, POST_TEMPLATE, POST_BYTE_LEVEL, POST_BERT };

static const component_kind kinds[] = {
    {"Sequence", POST_SEQUENCE},   {"TemplateProcessing", POST_TEMPLATE}, {"ByteLevel", POST_BYTE_LEVEL},
    {"BertProcessing", POST_BERT}, {"RobertaProcessing", POST_BERT},      {NULL, 0},
};

static fsdp_status read_id(const char *name, const json_t *value, int32_t *id)
{
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || number > INT32_MAX)
        return error_set(FSDP_ERR_INPUT, "%s: a special token of the post_processor needs an id", name);
    *id = (int32_t)number;
    return FSDP_OK;
}

/* A list that is longer than any use of it repeats the text, or tokens, without end. */
static fsdp_status add_piece(const char *name, postprocessor *p, int32_t piece)
{
    enum { MAX_PIECES = 1024 };
    if (p->pieces.n >= MAX_PIECES)
        return error_set(FSDP_ERR_INPUT, "%s: the post_processor has more than %d pieces", name, MAX_PIECES);
    return id_append(&p->pieces, piece);
}

static fsdp_status add_special(const char *name, const json_t *specials, const char *token, postprocessor *p)
{
    json_t *ids = json_object_get(json_object_get(specials, token), "ids"), *value;
    size_t i;
    if (!json_is_array(ids))
        return error_set(FSDP_ERR_INPUT, "%s: the post_processor uses \"%s\", which its special_tokens do not have",
                         name, token);
    json_array_foreach(ids, i, value)
    {
        int32_t id = 0;
        FSDP_TRY(read_id(name, value, &id));
        FSDP_TRY(add_piece(name, p, id));
    }
    return FSDP_OK;
}

static fsdp_status read_template(const char *name, const json_t *object, postprocessor *p)
{
    json_t *single, *piece;
    size_t i;
    FSDP_TRY(component_array(name, object, "single", &single));
    json_array_foreach(single, i, piece)
    {
        const json_t *text = json_object_get(piece, "Sequence"), *special = json_object_get(piece, "SpecialToken");
        const char *id = json_string_value(json_object_get(text != NULL ? text : special, "id"));
        if (id == NULL)
            return error_set(FSDP_ERR_INPUT,
                             "%s: piece %zu of the post_processor is neither a Sequence nor a SpecialToken", name, i);
        if (special != NULL)
            FSDP_TRY(add_special(name, json_object_get(object, "special_tokens"), id, p));
        else if (strcmp(id, "A") == 0)
            FSDP_TRY(add_piece(name, p, POSTPROCESSOR_TEXT));
        else
            return error_set(FSDP_ERR_INPUT, "%s: the template for a single text uses sequence \"%s\"", name, id);
    }
    return FSDP_OK;
}

/* "cls" and "sep" are [token, id]. */
static fsdp_status read_bert(const char *name, const json_t *object, postprocessor *p)
{
    int32_t first = 0, last = 0;
    FSDP_TRY(read_id(name, json_array_get(json_object_get(object, "cls"), 1), &first));
    FSDP_TRY(read_id(name, json_array_get(json_object_get(object, "sep"), 1), &last));
    FSDP_TRY(id_append(&p->pieces, first));
    FSDP_TRY(id_append(&p->pieces, POSTPROCESSOR_TEXT));
    return id_append(&p->pieces, last);
}

static fsdp_status add_processor(const char *name, const json_t *object, postprocessor *p)
{
    int kind = 0;
    FSDP_TRY(component_find(name, "post_processor", object, kinds, &kind));
    if (kind == POST_BYTE_LEVEL) /* moves offsets only */
        return FSDP_OK;
    if (kind == POST_SEQUENCE) {
        json_t *members, *member;
        size_t i;
        FSDP_TRY(component_array(name, object, "processors", &members));
        json_array_foreach(members, i, member) FSDP_TRY(add_processor(name, member, p));
        return FSDP_OK;
    }
    if (p->pieces.n > 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: two post_processors that both add tokens are not supported", name);
    return kind == POST_TEMPLATE ? read_template(name, object, p) : read_bert(name, object, p);
}

fsdp_status postprocessor_create(const char *name, const json_t *object, postprocessor *out)
{
    *out = (postprocessor){0};
    return object == NULL || json_is_null(object) ? FSDP_OK : add_processor(name, object, out);
}

void postprocessor_free(postprocessor *p)
{
    id_free(&p->pieces);
}
