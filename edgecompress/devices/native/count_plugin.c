/* Counts the instructions an ARM program executes under qemu, by class, from one mark to the next.
 *
 *   qemu-aarch64 -plugin file=count_plugin.so,out=FILE[,cache=on] PROGRAM
 *
 * A mark is the system call `litert_runner --mark` makes before and after every inference. At each one
 * FILE gets a line `mark=N instructions=N ...` with what was executed since the mark before; the first
 * one tells of everything before it. The classes add up to `instructions`.
 *
 * cache=on adds the misses of two caches, which see every access from the first mark on. That takes
 * about a quarter longer.
 *
 * Part of edgecompress (Apache-2.0). Since it is loaded into qemu, this file may also be used under
 * GPL-2.0-or-later.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* What is used of qemu's plugin interface, version 1 (qemu 6 to 8). Debian ships no header for it. */

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t PluginId;
typedef struct Block Block;             /* struct qemu_plugin_tb */
typedef struct Instruction Instruction; /* struct qemu_plugin_insn */
typedef uint32_t Access;                /* qemu_plugin_meminfo_t */

typedef struct {
    const char *target_arch; /* more follows that is not used */
} Info;

enum { ADD_U64 = 0 };       /* qemu_plugin_op */
enum { NO_REGISTERS = 0 };  /* qemu_plugin_cb_flags */
enum { READ_OR_WRITE = 3 }; /* qemu_plugin_mem_rw */

typedef void OnTranslation(PluginId id, Block *block);
typedef void OnAccess(unsigned core, Access access, uint64_t address, void *data);
typedef void OnSystemCall(PluginId id, unsigned core, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3,
                          uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8);

void qemu_plugin_register_vcpu_tb_trans_cb(PluginId id, OnTranslation *call);
void qemu_plugin_register_vcpu_tb_exec_inline(Block *block, int operation, void *counter, uint64_t value);
void qemu_plugin_register_vcpu_mem_cb(Instruction *instruction, OnAccess *call, int flags, int kind,
                                      void *data);
void qemu_plugin_register_vcpu_syscall_cb(PluginId id, OnSystemCall *call);
size_t qemu_plugin_tb_n_insns(const Block *block);
Instruction *qemu_plugin_tb_get_insn(const Block *block, size_t index);
const void *qemu_plugin_insn_data(const Instruction *instruction);
unsigned qemu_plugin_mem_size_shift(Access access);

extern EXPORT int qemu_plugin_version;
int qemu_plugin_version = 1;
EXPORT int qemu_plugin_install(PluginId id, const Info *info, int argc, char **argv);

/* Counters */

enum {
    INSTRUCTIONS,
    MULTIPLIES, /* SIMD and floating point; also those that add */
    SIMD,       /* the rest of both */
    VECTOR_LOADS,
    VECTOR_STORES,
    SCALAR_LOADS, /* also prefetches, of no bytes, and atomic operations */
    SCALAR_STORES,
    BRANCHES,
    OTHER,
    BYTES_LOADED,
    BYTES_STORED,
    L1_MISSES,
    L2_MISSES,
    COUNTERS
};

static const char *const names[COUNTERS] = {
    "instructions",  "multiplies", "simd",  "vector_loads", "vector_stores", "scalar_loads",
    "scalar_stores", "branches",   "other", "bytes_loaded", "bytes_stored",  "l1_misses",
    "l2_misses",
};

static uint64_t counters[COUNTERS]; /* of the program's only thread: nothing here is atomic */
static bool with_cache, marked;
static FILE *out;

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

/* Adds one instruction to the counts of its block. */
static void classify(uint32_t word, uint64_t *counts) {
    uint32_t group = bits(word, 28, 25);
    counts[INSTRUCTIONS]++;
    if ((group & 5) == 4) {
        Traffic moved = memory_traffic(word);
        bool vector = bits(word, 26, 26);
        if (moved.is_store)
            counts[vector ? VECTOR_STORES : SCALAR_STORES]++;
        else
            counts[vector ? VECTOR_LOADS : SCALAR_LOADS]++;
        counts[BYTES_LOADED] += moved.loaded;
        counts[BYTES_STORED] += moved.stored;
    } else if ((group & 7) == 7) {
        counts[is_multiply(word) ? MULTIPLIES : SIMD]++;
    } else {
        counts[is_branch(word) ? BRANCHES : OTHER]++;
    }
}

/* Caches: 64 KB and 512 KB as of a Cortex-A76, the line unused for longest makes room, no prefetch */

enum { LINE_SHIFT = 6, L1_SETS = 256, L1_WAYS = 4, L2_SETS = 1024, L2_WAYS = 8 };
static uint64_t l1[L1_SETS][L1_WAYS], l2[L2_SETS][L2_WAYS]; /* lines of a set, the latest used first */

/* Puts a line first in its set; returns whether it was there. */
static bool touch(uint64_t *set, int ways, uint64_t line) {
    int place = 0;
    while (place < ways - 1 && set[place] != line) place++;
    bool hit = set[place] == line;
    memmove(set + 1, set, (size_t)place * sizeof *set);
    set[0] = line;
    return hit;
}

static void touch_line(uint64_t line) {
    if (touch(l1[line % L1_SETS], L1_WAYS, line)) return;
    counters[L1_MISSES]++;
    if (!touch(l2[line % L2_SETS], L2_WAYS, line)) counters[L2_MISSES]++;
}

static void on_access(unsigned core, Access access, uint64_t address, void *data) {
    (void)core, (void)data;
    if (!marked) return;
    uint64_t last = (address + (1u << qemu_plugin_mem_size_shift(access)) - 1) >> LINE_SHIFT;
    touch_line(address >> LINE_SHIFT);
    if (last != address >> LINE_SHIFT) touch_line(last);
}

/* Called by qemu */

static void on_translation(PluginId id, Block *block) {
    uint64_t counts[COUNTERS] = {0};
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        Instruction *instruction = qemu_plugin_tb_get_insn(block, i);
        uint32_t word;
        memcpy(&word, qemu_plugin_insn_data(instruction), sizeof word);
        classify(word, counts);
        if (with_cache)
            qemu_plugin_register_vcpu_mem_cb(instruction, on_access, NO_REGISTERS, READ_OR_WRITE, NULL);
    }
    for (int i = 0; i < COUNTERS; i++)
        if (counts[i]) qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &counters[i], counts[i]);
}

enum { GETPRIORITY = 141, MARK = 0x4d41524b }; /* see mark_edge in litert_runner.c */

static void on_system_call(PluginId id, unsigned core, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3,
                           uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
    (void)id, (void)core, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
    if (number != GETPRIORITY || (uint32_t)a1 != MARK) return;
    fprintf(out, "mark=%" PRIu64, a2);
    for (int i = 0; i < (with_cache ? COUNTERS : L1_MISSES); i++)
        fprintf(out, " %s=%" PRIu64, names[i], counters[i]);
    fputc('\n', out);
    fflush(out);
    memset(counters, 0, sizeof counters);
    marked = true;
}

static bool read_option(const char *option) {
    if (strncmp(option, "out=", 4) == 0) return (out = fopen(option + 4, "w")) != NULL;
    with_cache = strcmp(option, "cache=on") == 0;
    return with_cache || strcmp(option, "cache=off") == 0;
}

int qemu_plugin_install(PluginId id, const Info *info, int argc, char **argv) {
    bool known = strcmp(info->target_arch, "aarch64") == 0;
    for (int i = 0; i < argc; i++) known = known && read_option(argv[i]);
    if (!known || out == NULL) {
        fprintf(stderr, "count_plugin: needs an aarch64 program and out=FILE, and takes cache=on\n");
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_vcpu_syscall_cb(id, on_system_call);
    return 0;
}
