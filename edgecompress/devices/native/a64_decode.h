/* What an A64 instruction is: its class and what it moves between memory and registers.
 *
 * Part of edgecompress (Apache-2.0); see count_plugin.c.
 */
#ifndef A64_DECODE_H
#define A64_DECODE_H

#include <stdbool.h>
#include <stdint.h>

/* Decoding: Arm Architecture Reference Manual, C4.1, "A64 instruction set encoding" */

static uint32_t bits(uint32_t word, int high, int low) {
    return word >> low & ((2u << (high - low)) - 1);
}

/* What an instruction reads from and writes to memory; both for an atomic operation. */
typedef struct {
    uint32_t loaded, stored;
    bool is_store; /* tells a store of which the size is not known from a load */
} Traffic;

static Traffic traffic(bool load, uint32_t bytes) {
    return load ? (Traffic){.loaded = bytes} : (Traffic){.stored = bytes, .is_store = true};
}

/* LD1 to LD4 and ST1 to ST4 of whole registers. */
static Traffic multiple_structures(uint32_t word) {
    static const uint8_t registers[16] = {[0] = 4, [2] = 4, [4] = 3, [6] = 3, [7] = 1, [8] = 2, [10] = 2};
    return traffic(bits(word, 22, 22), registers[bits(word, 15, 12)] * (bits(word, 30, 30) ? 16u : 8u));
}

/* The same of one lane, or of one element copied to all lanes. */
static Traffic single_structure(uint32_t word) {
    uint32_t opcode = bits(word, 15, 13), size = bits(word, 11, 10);
    uint32_t elements = ((opcode & 1) << 1 | bits(word, 21, 21)) + 1, scale = opcode >> 1;
    if (scale == 3)
        scale = size;
    else if (scale == 2 && size & 1)
        scale = 3;
    return traffic(bits(word, 22, 22), elements << scale);
}

/* Load-exclusive and its kin, and compare-and-swap. */
static Traffic exclusive(uint32_t word) {
    uint32_t size = bits(word, 31, 30);
    bool load = bits(word, 22, 22), o1 = bits(word, 21, 21), o2 = bits(word, 23, 23);
    if (!o1) return traffic(load, 1u << size);
    bool pair = !o2, swap = o2 || size < 2; /* CASP has the sizes LDXP does not */
    uint32_t bytes = pair ? 8u << (size & 1) : 1u << size;
    return swap ? (Traffic){.loaded = bytes, .stored = bytes} : traffic(load, bytes);
}

static Traffic literal(uint32_t word, bool vector) {
    uint32_t size = bits(word, 31, 30);
    static const uint8_t scalar[4] = {4, 8, 4, 0}; /* the last one is a prefetch */
    return traffic(true, vector ? 4u << size : scalar[size]);
}

static Traffic pair(uint32_t word, bool vector) {
    uint32_t size = bits(word, 31, 30), each = vector ? 4u << size : 4u << (size >> 1);
    return traffic(bits(word, 22, 22), 2 * each);
}

/* One register with an address of any form, and atomic operations. */
static Traffic single_register(uint32_t word, bool vector) {
    uint32_t size = bits(word, 31, 30), kind = bits(word, 23, 22);
    bool other_form = bits(word, 25, 24) == 0 && bits(word, 21, 21);
    if (vector) return traffic(kind & 1, kind & 2 ? 16u : 1u << size);
    if (other_form && bits(word, 11, 10) == 0) { /* LDADD, SWP, ...; LDAPR only reads */
        bool only_reads = bits(word, 15, 12) == 12;
        return (Traffic){.loaded = 1u << size, .stored = only_reads ? 0 : 1u << size};
    }
    if (other_form && bits(word, 11, 10) != 2) return traffic(true, 8); /* LDRAA, LDRAB */
    bool prefetch = size == 3 && kind == 2;
    return traffic(kind != 0, prefetch ? 0 : 1u << size);
}

static Traffic memory_traffic(uint32_t word) {
    bool vector = bits(word, 26, 26);
    switch (bits(word, 29, 28)) {
    case 0:
        if (!vector) return exclusive(word);
        return bits(word, 24, 24) ? single_structure(word) : multiple_structures(word);
    case 1:
        if (bits(word, 24, 24)) /* LDAPUR, STLUR */
            return traffic(bits(word, 23, 22) != 0, 1u << bits(word, 31, 30));
        return literal(word, vector);
    case 2:
        return pair(word, vector);
    default:
        return single_register(word, vector);
    }
}

/* Whether a SIMD or floating-point instruction multiplies: FMLA, FMUL, SDOT, SMLAL and their kin. */
static bool is_multiply(uint32_t word) {
    uint32_t form = bits(word, 28, 24), opcode = bits(word, 15, 11), end = bits(word, 11, 10);
    bool three = bits(word, 21, 21), is_unsigned = bits(word, 29, 29), scalar = bits(word, 31, 30) == 0;
    if (bits(word, 31, 31)) return false;               /* conversions, SHA3 */
    if (form == 0x1f && scalar) return true;            /* FMADD */
    if (form == 0x1f || form == 0x0f) return !(end & 1); /* by an element: all of them; else shifts */
    if (form == 0x1e && scalar) return three && end == 2 && (opcode & 0xe) == 0; /* FMUL, FNMUL */
    if (three && end == 0) return opcode >= 16 && opcode < 30;                   /* SMLAL, PMULL */
    if (!(end & 1)) return false;
    if (three) /* MLA, MUL, SQDMULH, FMLA, FMUL, FMLAL */
        return opcode == 18 || opcode == 19 || opcode == 22 || opcode == 25 || opcode == 27 ||
               (opcode == 29 && !is_unsigned);
    if (opcode & 16) return !(is_unsigned && (opcode & 13) == 12); /* SDOT, SMMLA, FCMLA; not FCADD */
    return bits(word, 22, 22) && (opcode == 1 || opcode == 3);     /* FMLA, FMUL of half precision */
}

static bool is_branch(uint32_t word) {
    uint32_t top = bits(word, 31, 24), without_link = top & 0x7f;
    return (without_link & 0x7c) == 0x14    /* B, BL */
           || (without_link & 0x7c) == 0x34 /* CBZ, CBNZ, TBZ, TBNZ */
           || top == 0x54                   /* B.cond */
           || (top & 0xfe) == 0xd6;         /* BR, BLR, RET */
}

/* Loads, stores, prefetches and atomic operations. */
static bool is_memory(uint32_t word) {
    return (bits(word, 28, 25) & 5) == 4;
}

static bool is_simd(uint32_t word) {
    return (bits(word, 28, 25) & 7) == 7;
}

#endif
