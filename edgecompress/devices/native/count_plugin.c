/* Counts what an ARM program executes under qemu from one mark to the next, and models what is not counted.
 *
 *   qemu-aarch64 -plugin file=count_plugin.so,out=FILE PROGRAM
 *
 * A mark is the system call `litert_runner --mark` makes before and after every inference. At each one
 * FILE gets a line `mark=N instructions=N ...` with what was executed since the mark before; the first
 * one says nothing, since what comes before it is not counted.
 *
 * - Instructions by class, which add up to `instructions`, and the bytes they load and store: exact.
 * - `loop_exits`: how often code behind the end of a loop was reached, where a branch is guessed wrong.
 * - `issue_cycles` and `loop_cycles`: cycles of a Cortex-A76 by a76_pipeline.h.
 * - Misses of caches by a76_caches.h, which see every access from the first mark on.
 *
 * Part of edgecompress (Apache-2.0). Since it is loaded into qemu, this file and those it includes may also
 * be used under GPL-2.0-or-later.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "a64_decode.h"
#include "a76_caches.h"
#include "a76_pipeline.h"

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
uint64_t qemu_plugin_insn_vaddr(const Instruction *instruction);
void *qemu_plugin_insn_haddr(const Instruction *instruction);
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
    LOOP_EXITS,
    ISSUE_CYCLES, /* this and the next one times 16 */
    LOOP_CYCLES,
    COUNTERS
};

static const char *const names[COUNTERS] = {
    "instructions",  "multiplies",   "simd",         "vector_loads", "vector_stores",
    "scalar_loads",  "scalar_stores", "branches",    "other",        "bytes_loaded",
    "bytes_stored",  "loop_exits",   "issue_cycles", "loop_cycles",
};

/* A block of code as qemu translated it. What its instructions are is found out once it was executed. */
typedef struct Tally {
    uint64_t executions; /* since the last mark; of the program's only thread, so nothing here is atomic */
    uint64_t counts[COUNTERS];
    struct Tally *next;
    uint32_t length;
    bool counted;
    uint32_t words[];
} Tally;

static Tally *tallies;
static bool marked;
static FILE *out;

/* Adds one instruction to the counts of its block. */
static void classify(uint32_t word, uint64_t *counts) {
    counts[INSTRUCTIONS]++;
    if (is_memory(word)) {
        Traffic moved = memory_traffic(word);
        bool of_vectors = bits(word, 26, 26);
        if (moved.is_store)
            counts[of_vectors ? VECTOR_STORES : SCALAR_STORES]++;
        else
            counts[of_vectors ? VECTOR_LOADS : SCALAR_LOADS]++;
        counts[BYTES_LOADED] += moved.loaded;
        counts[BYTES_STORED] += moved.stored;
    } else if (is_simd(word)) {
        counts[is_multiply(word) ? MULTIPLIES : SIMD]++;
    } else {
        counts[is_branch(word) ? BRANCHES : OTHER]++;
    }
}

static void count_block(Tally *tally) {
    static Operation operations[LONGEST_BLOCK];
    for (size_t i = 0; i < tally->length; i++) {
        classify(tally->words[i], tally->counts);
        operations[i] = operation(tally->words[i]);
    }
    tally->counts[ISSUE_CYCLES] = least_cycles_16(operations, tally->length);
    tally->counts[LOOP_CYCLES] = loop_cycles_16(operations, tally->length);
    tally->counted = true;
}

/* Adds up what all blocks did since the last mark, and forgets it. */
static void collect(uint64_t *counters) {
    for (Tally *one = tallies; one != NULL; one = one->next) {
        if (one->executions && marked) {
            if (!one->counted) count_block(one);
            for (int i = 0; i < COUNTERS; i++) counters[i] += one->executions * one->counts[i];
        }
        one->executions = 0;
    }
    counters[ISSUE_CYCLES] /= 16;
    counters[LOOP_CYCLES] /= 16;
}

/* Called by qemu */

static void on_access(unsigned core, Access access, uint64_t address, void *data) {
    (void)core, (void)data;
    if (!marked) return;
    uint64_t first = address >> LINE_SHIFT;
    touch_line(first);
    if ((address & (LINE_BYTES - 1)) > LINE_BYTES - LARGEST_ACCESS) {
        uint64_t last = (address + (1u << qemu_plugin_mem_size_shift(access)) - 1) >> LINE_SHIFT;
        if (last != first) touch_line(last);
    }
}

/* Whether the instruction before the block jumps back, so that the block is what comes after a loop. */
static bool follows_loop(const Instruction *first) {
    const uint8_t *place = qemu_plugin_insn_haddr(first);
    uint32_t before;
    if (qemu_plugin_insn_vaddr(first) % 4096 == 0 || place == NULL) return false; /* may not be there */
    memcpy(&before, place - sizeof before, sizeof before);
    bool by_bit = (bits(before, 30, 24) & 0x7e) == 0x36;
    bool conditional = bits(before, 31, 24) == 0x54 || (bits(before, 30, 24) & 0x7e) == 0x34 || by_bit;
    return conditional && bits(before, by_bit ? 18 : 23, by_bit ? 18 : 23);
}

static void on_translation(PluginId id, Block *block) {
    size_t length = qemu_plugin_tb_n_insns(block);
    (void)id;
    if (length > LONGEST_BLOCK) abort(); /* qemu's own limit is 512 */
    Tally *tally = calloc(1, sizeof *tally + length * sizeof *tally->words);
    if (tally == NULL) abort();
    for (size_t i = 0; i < length; i++) {
        Instruction *instruction = qemu_plugin_tb_get_insn(block, i);
        memcpy(&tally->words[i], qemu_plugin_insn_data(instruction), sizeof *tally->words);
        qemu_plugin_register_vcpu_mem_cb(instruction, on_access, NO_REGISTERS, READ_OR_WRITE, NULL);
    }
    tally->length = (uint32_t)length;
    tally->counts[LOOP_EXITS] = length && follows_loop(qemu_plugin_tb_get_insn(block, 0));
    tally->next = tallies;
    tallies = tally;
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &tally->executions, 1);
}

enum { GETPRIORITY = 141, MARK = 0x4d41524b }; /* see mark_edge in litert_runner.c */

static void on_system_call(PluginId id, unsigned core, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3,
                           uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
    (void)id, (void)core, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
    if (number != GETPRIORITY || (uint32_t)a1 != MARK) return;
    uint64_t counters[COUNTERS] = {0};
    collect(counters);
    fprintf(out, "mark=%" PRIu64, a2);
    for (int i = 0; i < COUNTERS; i++) fprintf(out, " %s=%" PRIu64, names[i], counters[i]);
    for (int i = 0; i < CACHE_COUNTERS; i++)
        fprintf(out, " %s=%" PRIu64, cache_names[i], cache_counters[i]);
    fputc('\n', out);
    fflush(out);
    memset(cache_counters, 0, sizeof cache_counters);
    marked = true;
}

int qemu_plugin_install(PluginId id, const Info *info, int argc, char **argv) {
    bool known = strcmp(info->target_arch, "aarch64") == 0 && argc == 1 && strncmp(argv[0], "out=", 4) == 0;
    if (known) out = fopen(argv[0] + 4, "w");
    if (out == NULL) {
        fprintf(stderr, "count_plugin: needs an aarch64 program and out=FILE, and takes nothing else\n");
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_vcpu_syscall_cb(id, on_system_call);
    return 0;
}
