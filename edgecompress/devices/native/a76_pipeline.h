/* How many cycles a Cortex-A76 needs for a block of instructions that finds all its data in the first cache.
 *
 * Four instructions are dispatched per cycle, in order, and up to 128 wait for their turn in a pipe or for
 * the results of others.
 *
 * Part of edgecompress (Apache-2.0); see count_plugin.c.
 */
#ifndef A76_PIPELINE_H
#define A76_PIPELINE_H

#include <string.h>

#include "a76_operations.h"

enum { WIDTH = 4, WINDOW = 128, LONGEST_BLOCK = 1024 };

/* Least cycles times 16: what is dispatched, and what every group of pipes has to take. */
static uint64_t least_cycles_16(const Operation *block, size_t count) {
    static const struct {
        uint8_t pipes, number;
    } groups[] = {{V0, 1}, {V1, 1}, {V, 2}, {L, 2}, {M, 1}, {I, 3}, {B, 1}};
    uint64_t most = count * 16 / WIDTH;
    for (size_t group = 0; group < sizeof groups / sizeof *groups; group++) {
        uint64_t taken = 0;
        for (size_t i = 0; i < count; i++) {
            if (!(block[i].pipes & ~groups[group].pipes)) taken += block[i].times;
            if (!(block[i].more_pipes & ~groups[group].pipes)) taken += block[i].more_times;
            if (groups[group].pipes == I && block[i].updated != NONE) taken++;
        }
        uint64_t cycles = taken * 16 / groups[group].number;
        if (cycles > most) most = cycles;
    }
    return most;
}

/* The block as the body of a loop */

enum { HORIZON = 1 << 14, STEPS = 384, LEAST_ROUNDS = 4 };

typedef struct {
    uint8_t busy[HORIZON];               /* pipes taken in each cycle */
    uint32_t ready[REGISTERS];           /* when a result can be used */
    uint32_t sum_ready[REGISTERS];       /* when it can be added to */
    uint32_t left[WINDOW];               /* when the last instructions left the window, in order */
    uint64_t dispatched, latest;
} Machine;

/* Takes the first free cycle of one of the pipes from `from` on. */
static uint32_t take_pipe(Machine *machine, uint32_t from, uint8_t pipes) {
    while (from < HORIZON && !(pipes & ~machine->busy[from])) from++;
    if (from >= HORIZON) return from; /* a block of nothing but divisions: no pipe is the limit */
    uint8_t free_pipes = pipes & (uint8_t)~machine->busy[from];
    machine->busy[from] |= (uint8_t)(free_pipes & -free_pipes);
    return from;
}

static uint32_t later(uint32_t one, uint32_t other) {
    return one > other ? one : other;
}

static void execute(Machine *machine, const Operation *one) {
    size_t slot = machine->dispatched % WINDOW;
    uint32_t start = later((uint32_t)(machine->dispatched / WIDTH), machine->left[slot]);
    for (int i = 0; i < one->source_count; i++) start = later(start, machine->ready[one->sources[i]]);
    if (one->accumulated != NONE) start = later(start, machine->sum_ready[one->accumulated]);
    for (int i = 0; i < one->times; i++) start = take_pipe(machine, start, one->pipes);
    for (int i = 0; i < one->more_times; i++) take_pipe(machine, start, one->more_pipes);
    uint32_t done = start + one->latency;
    for (int i = 0; i < one->target_count; i++)
        machine->ready[one->targets[i]] = machine->sum_ready[one->targets[i]] = done;
    if (one->accumulated != NONE && one->target_count)
        machine->sum_ready[one->targets[0]] = start + one->sum_latency;
    if (one->updated != NONE) machine->ready[one->updated] = take_pipe(machine, start, I) + 1;
    machine->latest = later((uint32_t)machine->latest, done);
    machine->left[slot] = (uint32_t)machine->latest;
    machine->dispatched++;
}

/* Cycles of one round times 16 when the block is run over and over, each round as soon as it can. */
static uint64_t loop_cycles_16(const Operation *block, size_t count) {
    static Machine machine;
    size_t rounds = count * LEAST_ROUNDS < STEPS ? STEPS / count : LEAST_ROUNDS;
    uint64_t half = 0;
    memset(&machine, 0, sizeof machine);
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < count; i++) execute(&machine, &block[i]);
        if (round == rounds / 2 - 1) half = machine.latest;
    }
    uint64_t cycles = (machine.latest - half) * 16 / (rounds - rounds / 2);
    uint64_t least = least_cycles_16(block, count);
    return cycles > least ? cycles : least;
}

#endif
