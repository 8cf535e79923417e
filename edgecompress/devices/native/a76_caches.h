/* Caches of a Cortex-A76 in a Snapdragon 855: which accesses miss them, and which misses nobody saw coming.
 *
 * Lines of 64 bytes; the one unused for longest makes room. A miss next to one of the latest misses is part
 * of a stream, which prefetchers of the processor would have fetched; the others are jumps.
 *
 * Part of edgecompress (Apache-2.0); see count_plugin.c.
 */
#ifndef A76_CACHES_H
#define A76_CACHES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LINE_SHIFT = 6, LINE_BYTES = 64, LARGEST_ACCESS = 16, PAGE_SHIFT = 12 };
enum { L1_SETS = 256, L1_WAYS = 4 };   /* 64 KB */
enum { L2_SETS = 1024, L2_WAYS = 8 };  /* 512 KB */
enum { L3_SETS = 2048, L3_WAYS = 16 }; /* 2 MB, all cores together */
enum { TLB_SETS = 256, TLB_WAYS = 5 }; /* pages of which the place is known */
enum { STREAMS = 16, STREAM_REACH = 2 };

enum { L1_MISSES, L1_JUMPS, L2_MISSES, L2_JUMPS, L3_MISSES, L3_JUMPS, TLB_MISSES, CACHE_COUNTERS };
static const char *const cache_names[CACHE_COUNTERS] = {
    "l1_misses", "l1_jumps", "l2_misses", "l2_jumps", "l3_misses", "l3_jumps", "tlb_misses",
};
static uint64_t cache_counters[CACHE_COUNTERS];

static uint64_t l1[L1_SETS][L1_WAYS], l2[L2_SETS][L2_WAYS], l3[L3_SETS][L3_WAYS]; /* the latest used first */
static uint64_t pages[TLB_SETS][TLB_WAYS];
static uint64_t streams[STREAMS]; /* their latest lines, the stream that went on last first */

/* Puts a line first in its set; returns whether it was there. */
static bool touch(uint64_t *set, int ways, uint64_t line) {
    int place = 0;
    while (place < ways - 1 && set[place] != line) place++;
    bool hit = set[place] == line;
    memmove(set + 1, set, (size_t)place * sizeof *set);
    set[0] = line;
    return hit;
}

/* Continues the stream a line belongs to and returns false; otherwise begins one in place of the oldest. */
static bool jumps(uint64_t line) {
    int place = 0;
    while (place < STREAMS && line - streams[place] + STREAM_REACH > 2 * STREAM_REACH) place++;
    bool found = place < STREAMS;
    memmove(streams + 1, streams, (size_t)(found ? place : STREAMS - 1) * sizeof *streams);
    streams[0] = line;
    return !found;
}

static void miss(uint64_t line) {
    uint64_t page = line >> (PAGE_SHIFT - LINE_SHIFT), jump = jumps(line);
    cache_counters[L1_MISSES]++;
    cache_counters[L1_JUMPS] += jump;
    cache_counters[TLB_MISSES] += !touch(pages[page % TLB_SETS], TLB_WAYS, page);
    if (touch(l2[line % L2_SETS], L2_WAYS, line)) return;
    cache_counters[L2_MISSES]++;
    cache_counters[L2_JUMPS] += jump;
    if (touch(l3[line % L3_SETS], L3_WAYS, line)) return;
    cache_counters[L3_MISSES]++;
    cache_counters[L3_JUMPS] += jump;
}

static void touch_line(uint64_t line) {
    uint64_t *set = l1[line % L1_SETS];
    if (set[0] != line && !touch(set, L1_WAYS, line)) miss(line);
}

#endif
