/* Which pipes of a Cortex-A76 an instruction takes, for how long, and which registers it waits for.
 *
 * In own words after Arm's "Cortex-A76 Software Optimization Guide": two pipes take vectors and floating
 * point, two take addresses of loads and stores, three whole numbers, one of them also products, and one
 * branches. What is rare is given a round figure.
 *
 * Part of edgecompress (Apache-2.0); see count_plugin.c.
 */
#ifndef A76_OPERATIONS_H
#define A76_OPERATIONS_H

#include "a64_decode.h"

enum { V0 = 1, V1 = 2, L0 = 4, L1 = 8, S0 = 16, S1 = 32, M = 64, B = 128 };
enum { V = V0 | V1, L = L0 | L1, I = S0 | S1 | M };
enum { VECTOR = 32, FLAGS = 64, REGISTERS = 65, NONE = 31 }; /* x31 is 0 or the stack: never waited for */
enum { SOURCES = 4, TARGETS = 4 };

/* An instruction as the pipes see it. */
typedef struct {
    uint8_t pipes, times;             /* which of them may take it, and for how many cycles in all */
    uint8_t more_pipes, more_times;   /* its second part, as the data of a store */
    uint8_t latency;                  /* cycles until the result can be used */
    uint8_t accumulated, sum_latency; /* register it adds to; cycles until the next sum can use it */
    uint8_t updated;                  /* address register it moves on, ready after a cycle */
    uint8_t sources[SOURCES], targets[TARGETS];
    uint8_t source_count, target_count;
} Operation;

static void reads(Operation *one, uint32_t index) {
    if (index != NONE) one->sources[one->source_count++] = (uint8_t)index;
}

static void writes(Operation *one, uint32_t index) {
    if (index != NONE) one->targets[one->target_count++] = (uint8_t)index;
}

static void takes(Operation *one, int pipes, uint32_t times, int latency) {
    one->pipes = (uint8_t)pipes, one->times = (uint8_t)times, one->latency = (uint8_t)latency;
}

static void adds_to(Operation *one, uint32_t index, int sum_latency) {
    one->accumulated = (uint8_t)index, one->sum_latency = (uint8_t)sum_latency;
}

/* Memory */

/* How many registers LD1 to LD4 and ST1 to ST4 name. */
static uint32_t structure_registers(uint32_t word) {
    static const uint8_t whole[16] = {[0] = 4, [2] = 4, [4] = 3, [6] = 3, [7] = 1, [8] = 2, [10] = 2};
    if (!bits(word, 24, 24)) return whole[bits(word, 15, 12)];
    return ((bits(word, 13, 13) << 1) | bits(word, 21, 21)) + 1;
}

static void structure(uint32_t word, bool store, Operation *one) {
    uint32_t count = structure_registers(word), opcode = bits(word, 15, 12), target = bits(word, 4, 0);
    bool plain = !bits(word, 24, 24) && (opcode == 2 || opcode == 6 || opcode == 7 || opcode == 10);
    uint32_t wide = count << (store && bits(word, 30, 30));
    takes(one, L, wide ? wide : 1, plain ? 5 : 7);
    if (store || !plain) one->more_pipes = V, one->more_times = (uint8_t)count;
    for (uint32_t i = 0; i < count && i < TARGETS; i++)
        if (!store) writes(one, VECTOR + (target + i) % 32);
    if (bits(word, 23, 23)) one->updated = (uint8_t)bits(word, 9, 5);
}

static void memory(uint32_t word, Operation *one) {
    Traffic moved = memory_traffic(word);
    bool vector = bits(word, 26, 26), store = moved.is_store;
    uint32_t kind = bits(word, 29, 28), form = bits(word, 25, 24), file = vector ? VECTOR : 0;
    uint32_t bytes = store ? moved.stored : moved.loaded;
    reads(one, kind == 1 && form == 0 ? NONE : bits(word, 9, 5));
    if (kind == 0 && vector) {
        structure(word, store, one);
        return;
    }
    bool pair = kind == 2, wide = vector && store && bytes >= 16;
    takes(one, L, pair && (bytes > 8 || vector) ? 2 : 1, vector ? 5 : 4);
    if (wide) one->times = (uint8_t)(bytes / 8);
    if (vector && store) one->more_pipes = V, one->more_times = pair ? 2 : 1;
    if (kind == 3 && form == 0 && bits(word, 21, 21)) reads(one, bits(word, 20, 16));
    if (!store) writes(one, file == 0 && bits(word, 4, 0) == 31 ? NONE : file + bits(word, 4, 0));
    if (!store && pair) writes(one, file == 0 && bits(word, 14, 10) == 31 ? NONE : file + bits(word, 14, 10));
    bool single = kind == 3 && form == 0 && !bits(word, 21, 21) && bits(word, 10, 10);
    if (pair ? bits(word, 23, 23) : single) one->updated = (uint8_t)bits(word, 9, 5);
}

/* Whole numbers */

static void integer(uint32_t word, Operation *one) {
    uint32_t group = bits(word, 28, 24), target = bits(word, 4, 0);
    bool immediate = bits(word, 28, 26) == 4, sets_flags = bits(word, 29, 29);
    takes(one, I, 1, 1);
    if (is_branch(word)) {
        takes(one, B, 1, 1);
        return;
    }
    if (word == 0xd503201f) one->times = 0; /* NOP */
    if (bits(word, 28, 25) == 10 || group < 8) return; /* system instructions */
    writes(one, target);
    if (immediate) {
        uint32_t kind = bits(word, 25, 23);
        if (kind == 5) { /* MOVZ, MOVN; MOVK keeps the rest */
            if (bits(word, 30, 29) == 3) reads(one, target);
        } else if (kind >= 2) {
            reads(one, bits(word, 9, 5));
        }
        if ((kind == 2 && sets_flags) || (kind == 4 && bits(word, 30, 29) == 3)) writes(one, FLAGS);
        return;
    }
    reads(one, bits(word, 9, 5));
    reads(one, bits(word, 20, 16));
    if (group == 0x1b) { /* MADD and its kin */
        takes(one, M, 1, bits(word, 23, 21) & 2 ? 4 : 3);
        reads(one, bits(word, 14, 10));
    } else if (group == 0x0a || group == 0x0b) {
        bool shifted = group == 0x0b && !bits(word, 21, 21) ? bits(word, 15, 10) > 4 : bits(word, 21, 21);
        if (group == 0x0b && shifted) takes(one, M, 1, 2);
        if (group == 0x0b ? sets_flags : bits(word, 30, 29) == 3) writes(one, FLAGS);
    } else if (group == 0x1a && bits(word, 23, 21) == 6 && !bits(word, 30, 30)) {
        bool divides = bits(word, 15, 11) == 1;
        takes(one, divides ? M : I, divides ? 6 : 1, divides ? 9 : 1);
    } else if (group == 0x1a && bits(word, 23, 21) != 6) {
        reads(one, FLAGS);
        if (sets_flags) writes(one, FLAGS);
    }
}

/* Vectors and floating point */

static bool wide(uint32_t word) {
    return bits(word, 30, 30);
}

static void divides(uint32_t word, bool vector, Operation *one) {
    takes(one, V0, vector && wide(word) ? 9 : 5, vector ? 12 : 9);
}

/* FADD, FMUL and the like, of one number or of vectors. */
static void scalar_float(uint32_t word, Operation *one) {
    uint32_t end = bits(word, 11, 10), opcode = bits(word, 15, 12), target = bits(word, 4, 0);
    reads(one, VECTOR + bits(word, 9, 5));
    writes(one, VECTOR + target);
    takes(one, V, 1, 2);
    if (bits(word, 28, 24) == 0x1f) { /* FMADD */
        takes(one, V, 1, 4);
        reads(one, VECTOR + bits(word, 20, 16));
        adds_to(one, VECTOR + bits(word, 14, 10), 2);
    } else if (!bits(word, 21, 21) || bits(word, 15, 10) == 0) { /* to and from whole numbers */
        bool out = (bits(word, 18, 16) & 6) < 2 || bits(word, 18, 16) > 3 ? bits(word, 18, 16) != 7 : false;
        one->source_count = one->target_count = 0;
        reads(one, out ? VECTOR + bits(word, 9, 5) : bits(word, 9, 5));
        writes(one, out ? target : VECTOR + target);
        takes(one, out ? V0 : M, 1, out ? 4 : 3);
        if (!out && (bits(word, 18, 16) == 2 || bits(word, 18, 16) == 3))
            one->latency = 6, one->more_pipes = V0, one->more_times = 1;
    } else if (end == 2) {
        reads(one, VECTOR + bits(word, 20, 16));
        if (opcode == 0 || opcode == 8) takes(one, V, 1, 3);
        if (opcode == 1) divides(word, false, one);
    } else if (end == 0 && !bits(word, 12, 12)) {
        if (bits(word, 13, 13)) { /* FCMP */
            one->target_count = 0;
            writes(one, FLAGS);
            takes(one, V0, 1, 2);
            reads(one, VECTOR + bits(word, 20, 16));
        } else if (bits(word, 20, 15) == 3) {
            divides(word, false, one);
        } else if (bits(word, 20, 15) > 3) {
            takes(one, V0, 1, 3);
        }
    } else if (end & 1) { /* FCSEL, FCCMP */
        reads(one, VECTOR + bits(word, 20, 16));
        reads(one, FLAGS);
    }
}

/* DUP, INS, UMOV: lanes from and to whole-number registers and other lanes. */
static void lane_copy(uint32_t word, Operation *one) {
    uint32_t opcode = bits(word, 14, 11), target = bits(word, 4, 0);
    one->source_count = one->target_count = 0;
    if (opcode == 5 || opcode == 7) { /* SMOV, UMOV */
        if (!bits(word, 29, 29)) {
            reads(one, VECTOR + bits(word, 9, 5));
            writes(one, target);
            takes(one, V1, 1, 2);
            return;
        }
    }
    bool from_number = !bits(word, 29, 29) && (opcode == 1 || opcode == 3);
    reads(one, from_number ? bits(word, 9, 5) : VECTOR + bits(word, 9, 5));
    if (bits(word, 29, 29) || opcode == 3) reads(one, VECTOR + target); /* INS keeps the other lanes */
    writes(one, VECTOR + target);
    takes(one, from_number ? M : V, 1, from_number ? 3 : 2);
    if (from_number && opcode == 3) one->latency = 5, one->more_pipes = V, one->more_times = 1;
}

/* Products of whole numbers: one pipe only, and wide ones that are not widened take it twice. */
static void multiplies_numbers(uint32_t word, bool widens, bool adds, Operation *one) {
    bool twice = wide(word) && !widens;
    takes(one, V0, twice ? 2 : 1, twice ? 5 : 4);
    if (adds) adds_to(one, VECTOR + bits(word, 4, 0), 1);
}

static void three_same(uint32_t word, Operation *one) {
    uint32_t opcode = bits(word, 15, 11), is_unsigned = bits(word, 29, 29), high = bits(word, 23, 23);
    reads(one, VECTOR + bits(word, 20, 16));
    if (opcode >= 24) { /* floating point */
        if (opcode == 25) takes(one, V, 1, 4), adds_to(one, VECTOR + bits(word, 4, 0), 2);
        if (opcode == 27) takes(one, V, 1, 3);
        if (opcode == 31 && is_unsigned) divides(word, true, one);
        if (opcode == 31 && !is_unsigned) takes(one, V, 1, 4); /* FRECPS, FRSQRTS */
    } else if (opcode == 18 || opcode == 19 || opcode == 22) {
        multiplies_numbers(word, false, opcode == 18, one);
    } else if (opcode >= 8 && opcode <= 11) { /* shifts by a register */
        takes(one, V1, 1 + wide(word), opcode == 8 ? 2 : 4);
    } else if (opcode == 3 && is_unsigned && (high || bits(word, 22, 22))) { /* BSL, BIT, BIF */
        reads(one, VECTOR + bits(word, 4, 0));
    }
}

static void two_registers(uint32_t word, Operation *one) {
    uint32_t opcode = bits(word, 16, 12);
    if (bits(word, 20, 17) == 8) { /* over all lanes */
        takes(one, V1, 1, opcode >= 12 && opcode <= 15 ? 5 : 4);
    } else if (opcode == 6) { /* SADALP */
        takes(one, V1, 1, 4), adds_to(one, VECTOR + bits(word, 4, 0), 1);
    } else if (opcode == 20 || (opcode == 18 && bits(word, 29, 29))) { /* SQXTN and its kin */
        takes(one, V1, 1, 4);
    } else if (opcode == 31 && bits(word, 29, 29) && bits(word, 23, 23)) {
        divides(word, true, one); /* FSQRT */
    } else if (opcode >= 22 && opcode != 0x0f) { /* conversions, roundings, estimates */
        takes(one, V0, 1 + wide(word), wide(word) ? 4 : 3);
    }
}

static void by_element(uint32_t word, Operation *one) {
    uint32_t opcode = bits(word, 15, 12);
    bool half = bits(word, 23, 22) == 1;
    reads(one, VECTOR + (half ? bits(word, 19, 16) : bits(word, 20, 16)));
    if (opcode == 14) { /* SDOT */
        takes(one, V, 1, 3), adds_to(one, VECTOR + bits(word, 4, 0), 1);
    } else if ((opcode & 3) == 1 && !(bits(word, 29, 29) && opcode != 9)) {
        takes(one, V, 1, opcode == 9 ? 3 : 4);
        if (opcode != 9) adds_to(one, VECTOR + bits(word, 4, 0), 2);
    } else {
        bool widens = opcode < 12 && (opcode & 2); /* SMLAL, SQDMLAL, SMULL and their kin */
        multiplies_numbers(word, widens, opcode < 8, one);
    }
}

static void shift_by_constant(uint32_t word, Operation *one) {
    uint32_t opcode = bits(word, 15, 11);
    if (bits(word, 22, 19) == 0) { /* MOVI and its kin */
        one->source_count = 0;
        return;
    }
    bool simple = opcode == 0 || opcode == 10 || opcode == 16 || opcode == 20;
    takes(one, V1, 1, simple ? 2 : 4);
    if (opcode == 2 || opcode == 6) adds_to(one, VECTOR + bits(word, 4, 0), 1);
    if (opcode >= 28) takes(one, V0, 1 + wide(word), 4);
}

static void vector(uint32_t word, Operation *one) {
    uint32_t end = bits(word, 11, 10), opcode = bits(word, 15, 11);
    reads(one, VECTOR + bits(word, 9, 5));
    writes(one, VECTOR + bits(word, 4, 0));
    takes(one, V, 1, 2);
    if (bits(word, 24, 24)) {
        if (end & 1)
            shift_by_constant(word, one);
        else
            by_element(word, one);
    } else if (bits(word, 21, 21)) {
        if (end & 1) {
            three_same(word, one);
        } else if (end == 2) {
            two_registers(word, one);
        } else {
            reads(one, VECTOR + bits(word, 20, 16));
            if (opcode >= 16 && opcode < 30) /* SMLAL and its kin; SABAL does not multiply */
                multiplies_numbers(word, true, (opcode >> 1) != 12 && (opcode >> 1) != 13, one);
            else if (opcode == 10 || opcode == 14)
                adds_to(one, VECTOR + bits(word, 4, 0), 1), one->latency = 4;
        }
    } else if ((end & 1) && (opcode & 16)) { /* SDOT */
        reads(one, VECTOR + bits(word, 20, 16));
        takes(one, V, 1, 3), adds_to(one, VECTOR + bits(word, 4, 0), 1);
    } else if ((end & 1) && bits(word, 23, 21) == 0) {
        lane_copy(word, one);
    } else { /* half precision, permutations, TBL, EXT */
        reads(one, VECTOR + bits(word, 20, 16));
        if (is_multiply(word)) takes(one, V, 1, opcode == 1 ? 4 : 3);
        if (is_multiply(word) && opcode == 1) adds_to(one, VECTOR + bits(word, 4, 0), 2);
    }
}

static Operation operation(uint32_t word) {
    Operation one = {.accumulated = NONE, .updated = NONE};
    bool scalar = bits(word, 31, 30) == 0 && bits(word, 28, 25) == 15;
    if (is_memory(word))
        memory(word, &one);
    else if (!is_simd(word))
        integer(word, &one);
    else if (scalar)
        scalar_float(word, &one);
    else
        vector(word, &one);
    return one;
}

#endif
