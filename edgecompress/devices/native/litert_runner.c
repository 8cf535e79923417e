/* Runs a .tflite file with LiteRT on the CPU and prints how long every inference takes.
 *
 *   litert_runner --graph=FILE [--num_runs=50] [--min_secs=0] [--warmup_secs=0] [--max_secs=0]
 *                 [--num_threads=1] [--input=FILE] [--output=FILE] [--raw] [--mark]
 *
 * Runs until both --num_runs and --min_secs are reached, after a warm-up of at least one run.
 * --max_secs ends a run that takes too long, so that nothing is left running on a board whose
 * connection was lost; 0 means no limit. --input and --output hold the raw bytes of all inputs or
 * outputs one after the other. --raw prints every run; --mark brackets every run with a system call
 * that an instruction counter can see.
 *
 * Results and the runtime's own log go to stdout. On failure stderr gets one line, and the exit code
 * tells whose fault it is (network.h).
 */
#define _DEFAULT_SOURCE /* not _GNU_SOURCE: with it new C libraries bind strtol to a name old boards lack */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "network.h"

/* Options */

typedef struct {
    const char *graph, *input, *output;
    long runs, threads;
    double min_s, warmup_s, max_s;
    bool raw, mark;
} Options;

/* Returns the text after "--name=", or NULL if the argument is another one. */
static const char *value_of(const char *argument, const char *name) {
    size_t length = strlen(name);
    return strncmp(argument, name, length) == 0 && argument[length] == '=' ? argument + length + 1 : NULL;
}

static double seconds(const char *text, const char *name) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0 && value < 1e6))
        fail(EXIT_USAGE, "%s=%s: not a number of seconds", name, text);
    return value;
}

static long count(const char *text, const char *name) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 1)
        fail(EXIT_USAGE, "%s=%s: not a number from 1 on", name, text);
    return value;
}

static void read_option(Options *options, const char *argument) {
    const char *text;
    if ((text = value_of(argument, "--graph")))
        options->graph = text;
    else if ((text = value_of(argument, "--input")))
        options->input = text;
    else if ((text = value_of(argument, "--output")))
        options->output = text;
    else if ((text = value_of(argument, "--num_runs")))
        options->runs = count(text, "--num_runs");
    else if ((text = value_of(argument, "--num_threads")))
        options->threads = count(text, "--num_threads");
    else if ((text = value_of(argument, "--min_secs")))
        options->min_s = seconds(text, "--min_secs");
    else if ((text = value_of(argument, "--warmup_secs")))
        options->warmup_s = seconds(text, "--warmup_secs");
    else if ((text = value_of(argument, "--max_secs")))
        options->max_s = seconds(text, "--max_secs");
    else if (strcmp(argument, "--raw") == 0)
        options->raw = true;
    else if (strcmp(argument, "--mark") == 0)
        options->mark = true;
    else
        fail(EXIT_USAGE, "%s: unknown option", argument);
}

static Options read_options(int argc, char **argv) {
    Options options = {.runs = 50, .threads = 1};
    for (int i = 1; i < argc; i++) read_option(&options, argv[i]);
    if (options.graph == NULL) fail(EXIT_USAGE, "--graph=FILE is missing");
    return options;
}

/* Timing */

typedef struct {
    double *us;
    size_t length, room;
} Samples;

static double clock_us(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void append(Samples *samples, double us) {
    if (samples->length == samples->room) {
        samples->room = samples->room ? 2 * samples->room : 4096;
        samples->us = realloc(samples->us, samples->room * sizeof *samples->us);
        if (samples->us == NULL) fail(EXIT_SYSTEM, "out of memory");
    }
    samples->us[samples->length++] = us;
}

/* A system call nothing else makes; its second argument numbers the edges of the runs. */
static void mark_edge(void) {
    static long edge;
    syscall(SYS_getpriority, 0x4d41524b, edge++);
}

/* Returns how long it took. */
static double run_once(Net *net, bool mark) {
    if (mark) mark_edge();
    double start_us = clock_us(CLOCK_MONOTONIC);
    run_network(net);
    double end_us = clock_us(CLOCK_MONOTONIC);
    if (mark) mark_edge();
    return end_us - start_us;
}

/* Seconds are those spent in the runs: what lies between them would count for tiny networks. */
static Samples run_until(Net *net, long runs, double least_s, bool mark) {
    Samples samples = {0};
    double spent_us = 0;
    while ((long)samples.length < runs || spent_us < least_s * 1e6) {
        double us = run_once(net, mark);
        append(&samples, us);
        spent_us += us;
    }
    return samples;
}

static void stop_late(int signal_number) {
    static const char text[] = "litert_runner: took longer than --max_secs\n";
    (void)signal_number;
    _exit(write(complaints_fd, text, sizeof text - 1) < 0 ? EXIT_SYSTEM : EXIT_TIME);
}

static void limit_time(double most_s) {
    struct itimerval timer = {.it_value.tv_sec = (time_t)most_s}; /* 0 sets no timer */
    timer.it_value.tv_usec = (suseconds_t)((most_s - (double)timer.it_value.tv_sec) * 1e6);
    signal(SIGALRM, stop_late);
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* Printing */

static int ascending(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double mean(const Samples *samples) {
    double sum = 0;
    for (size_t i = 0; i < samples->length; i++) sum += samples->us[i];
    return sum / (double)samples->length;
}

static double deviation(const Samples *samples) {
    double middle = mean(samples), sum = 0;
    for (size_t i = 0; i < samples->length; i++) sum += pow(samples->us[i] - middle, 2);
    return sqrt(sum / (double)samples->length);
}

/* Prints a line as benchmark_model does. Sorts the samples, so it comes last. */
static void print_summary(Samples *samples) {
    size_t last = samples->length - 1;
    double *us = samples->us, average = mean(samples), spread = deviation(samples);
    printf("count=%zu first=%.3f curr=%.3f ", samples->length, us[0], us[last]);
    qsort(us, samples->length, sizeof *us, ascending);
    printf("min=%.3f max=%.3f avg=%.3f std=%.3f ", us[0], us[last], average, spread);
    printf("p5=%.3f median=%.3f p95=%.3f\n\n", us[last * 5 / 100], (us[last / 2] + us[(last + 1) / 2]) / 2,
           us[last * 95 / 100]);
}

static void measure(Net *net, const Options *options, double init_us) {
    Samples warmup = run_until(net, 1, options->warmup_s, options->mark);
    double warmup_us = mean(&warmup), first_us = warmup.us[0];
    double wall_us = clock_us(CLOCK_MONOTONIC), cpu_us = clock_us(CLOCK_THREAD_CPUTIME_ID);
    Samples samples = run_until(net, options->runs, options->min_s, options->mark);
    wall_us = clock_us(CLOCK_MONOTONIC) - wall_us;
    cpu_us = clock_us(CLOCK_THREAD_CPUTIME_ID) - cpu_us;

    for (size_t i = 0; options->raw && i < samples.length; i++) printf("sample_us=%.3f\n", samples.us[i]);
    /* with one thread, time that passed without computing went to another program */
    if (options->threads == 1) printf("cpu_us=%.3f wall_us=%.3f\n", cpu_us, wall_us);
    double average_us = mean(&samples);
    print_summary(&warmup);
    print_summary(&samples);
    printf("Inference timings in us: Init: %.3f, First inference: %.3f, ", init_us, first_us);
    printf("Warmup (avg): %.3f, Inference (avg): %.3f\n", warmup_us, average_us);
}

int main(int argc, char **argv) {
    send_log_to_stdout();
    Options options = read_options(argc, argv);
    limit_time(options.max_s);

    static Net net;
    printf("STARTING!\nGraph: [%s]\n", options.graph);
    fflush(stdout); /* before the runtime writes its log there */
    double start_us = clock_us(CLOCK_MONOTONIC);
    load_network(&net, options.graph, options.threads);
    double init_us = clock_us(CLOCK_MONOTONIC) - start_us;
    printf("fully_delegated=%d\n", is_fully_delegated(&net));

    fill_inputs(&net, options.input);
    measure(&net, &options, init_us);
    hand_out_outputs(&net, options.output);
    if (fflush(stdout) != 0) fail(EXIT_SYSTEM, "stdout: %s", strerror(errno));
    _exit(EXIT_SUCCESS); /* tearing the runtime down takes time and tells nothing */
}
