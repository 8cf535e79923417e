/* A network of a .tflite file, and the one way to fail. */
#ifndef EDGECOMPRESS_NETWORK_H
#define EDGECOMPRESS_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "litert.h"

enum { EXIT_MODEL = 1, EXIT_USAGE = 2, EXIT_SYSTEM = 3, EXIT_TIME = 4 };

/* Where complaints go. LiteRT logs to stderr, so `send_log_to_stdout` keeps the real stderr here. */
extern int complaints_fd;

void send_log_to_stdout(void);
_Noreturn void fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum { MOST_TENSORS = 64 };

typedef struct {
    Handle environment, model, compiled, signature;
    size_t input_count, output_count;
    Handle inputs[MOST_TENSORS], outputs[MOST_TENSORS];
    int32_t input_types[MOST_TENSORS];
} Net;

/* Each ends the process when it fails. */
void load_network(Net *net, const char *path, long threads);
void run_network(Net *net);
bool is_fully_delegated(const Net *net);

/* Fills the inputs with the bytes of a file, or, where the path is NULL, with made-up values. */
void fill_inputs(const Net *net, const char *path);

/* Prints a hash (FNV-1a) of all outputs and, where a path is given, writes their bytes. */
void hand_out_outputs(const Net *net, const char *path);

#endif
