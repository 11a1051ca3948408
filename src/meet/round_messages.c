/* The messages of rounds, field by field. */
#include "meet/rounds.h"

void round_join_put(wire_body *b, const round_join *j)
{
    wire_put_i32(b, j->node_rank);
    wire_put_i32(b, j->n_ranks);
    wire_put_i32(b, j->min_nodes);
    wire_put_i32(b, j->max_nodes);
    wire_put_i32(b, j->last_round);
    wire_put_i32(b, j->n_restarts);
    wire_put_i32(b, j->first_world_size);
    wire_put_i32(b, j->master_port);
    wire_put_i64(b, j->launcher);
    wire_put_text(b, j->host);
    wire_put_text(b, j->address);
}

bool round_join_get(wire_reader *r, round_join *j)
{
    j->node_rank = wire_get_i32(r);
    j->n_ranks = wire_get_i32(r);
    j->min_nodes = wire_get_i32(r);
    j->max_nodes = wire_get_i32(r);
    j->last_round = wire_get_i32(r);
    j->n_restarts = wire_get_i32(r);
    j->first_world_size = wire_get_i32(r);
    j->master_port = wire_get_i32(r);
    j->launcher = wire_get_i64(r);
    wire_get_text(r, j->host, sizeof j->host);
    wire_get_text(r, j->address, sizeof j->address);
    return wire_done(r) && j->n_ranks >= 1 && j->n_ranks <= ROUNDS_MAX_RANKS && j->node_rank >= -1 &&
           j->node_rank < ROUNDS_MAX_NODES && j->last_round >= -1 && j->last_round < 1 << 30 && j->n_restarts >= 0 &&
           j->n_restarts < 1 << 30 && j->first_world_size >= 0;
}

void round_place_put(wire_body *b, const round_place *p)
{
    wire_put_i32(b, p->round);
    wire_put_i32(b, p->n_restarts);
    wire_put_i32(b, p->node);
    wire_put_i32(b, p->n_nodes);
    wire_put_i32(b, p->first_rank);
    wire_put_i32(b, p->world_size);
    wire_put_i32(b, p->first_world_size);
    wire_put_i32(b, p->master_port);
    wire_put_text(b, p->master_address);
}

bool round_place_get(wire_reader *r, round_place *p)
{
    p->round = wire_get_i32(r);
    p->n_restarts = wire_get_i32(r);
    p->node = wire_get_i32(r);
    p->n_nodes = wire_get_i32(r);
    p->first_rank = wire_get_i32(r);
    p->world_size = wire_get_i32(r);
    p->first_world_size = wire_get_i32(r);
    p->master_port = wire_get_i32(r);
    wire_get_text(r, p->master_address, sizeof p->master_address);
    return wire_done(r);
}

void round_failure_put(wire_body *b, const round_failure *f)
{
    wire_put_i32(b, f->round);
    wire_put_i32(b, f->exit_code);
    wire_put_i32(b, f->is_final);
    wire_put_text(b, f->reason);
}

bool round_failure_get(wire_reader *r, round_failure *f)
{
    f->round = wire_get_i32(r);
    f->exit_code = wire_get_i32(r);
    f->is_final = wire_get_i32(r);
    wire_get_text(r, f->reason, sizeof f->reason);
    return wire_done(r) && f->exit_code >= 0 && f->exit_code < 256;
}

void round_stop_put(wire_body *b, const round_stop *s)
{
    wire_put_i32(b, s->round);
    wire_put_i32(b, s->verdict);
    wire_put_i32(b, s->exit_code);
    wire_put_text(b, s->reason);
}

bool round_stop_get(wire_reader *r, round_stop *s)
{
    s->round = wire_get_i32(r);
    s->verdict = wire_get_i32(r);
    s->exit_code = wire_get_i32(r);
    wire_get_text(r, s->reason, sizeof s->reason);
    return wire_done(r) && s->verdict >= ROUND_AGAIN && s->verdict <= ROUND_OVER;
}
