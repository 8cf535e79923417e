#define _DEFAULT_SOURCE
#include "network.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Failing */

int complaints_fd = STDERR_FILENO;

void send_log_to_stdout(void) {
    complaints_fd = dup(STDERR_FILENO);
    if (complaints_fd < 0 || dup2(STDOUT_FILENO, STDERR_FILENO) < 0) _exit(EXIT_SYSTEM);
}

_Noreturn void fail(int code, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fflush(stdout);
    dprintf(complaints_fd, "litert_runner: %s\n", text);
    _exit(code); /* not exit: threads of the runtime may still be at work */
}

static void check(Status status, const char *what) {
    if (status != 0) fail(EXIT_MODEL, "%s failed with LiteRT status %d", what, status);
}

/* Loading */

/* LiteRT takes settings of its CPU kernels as TOML text under the name of the kernel library. */
static Handle compile_options(long threads) {
    Handle options, cpu;
    char text[64];
    snprintf(text, sizeof text, "num_threads = %ld\n", threads);
    char *owned = strdup(text);
    if (owned == NULL) fail(EXIT_SYSTEM, "out of memory");
    check(LiteRtCreateOptions(&options), "making options");
    check(LiteRtSetOptionsHardwareAccelerators(options, CPU), "choosing the CPU");
    check(LiteRtCreateOpaqueOptions("xnnpack", owned, free, &cpu), "making CPU options");
    check(LiteRtAddOpaqueOptions(options, cpu), "adding CPU options");
    return options;
}

static void compile(Net *net, const char *path, long threads) {
    if (access(path, R_OK) != 0) fail(EXIT_MODEL, "%s: %s", path, strerror(errno));
    check(LiteRtCreateEnvironment(0, NULL, &net->environment), "starting LiteRT");
    check(LiteRtCreateModelFromFile(net->environment, path, &net->model), "reading the file");
    Handle options = compile_options(threads);
    check(LiteRtCreateCompiledModel(net->environment, net->model, options, &net->compiled),
          "preparing the network");
    check(LiteRtGetModelSignature(net->model, 0, &net->signature), "finding the signature");
    check(LiteRtGetNumSignatureInputs(net->signature, &net->input_count), "counting inputs");
    check(LiteRtGetNumSignatureOutputs(net->signature, &net->output_count), "counting outputs");
    if (net->input_count > MOST_TENSORS || net->output_count > MOST_TENSORS)
        fail(EXIT_MODEL, "%zu inputs and %zu outputs; at most %d each", net->input_count, net->output_count,
             MOST_TENSORS);
}

typedef Status (*FindTensor)(Handle signature, size_t index, Handle *tensor);
typedef Status (*FindRequirements)(Handle compiled, size_t signature, size_t index, Handle *requirements);

/* Makes a buffer for one input or output and returns the type of its elements. */
static int32_t allocate(const Net *net, size_t index, FindTensor find, FindRequirements require,
                        Handle *buffer) {
    Handle tensor, requirements;
    TensorType type;
    check(find(net->signature, index, &tensor), "finding a tensor");
    check(LiteRtGetRankedTensorType(tensor, &type), "reading a tensor's type");
    for (uint32_t i = 0; i < type.rank; i++)
        if (type.dimensions[i] < 0)
            fail(EXIT_MODEL, "the size of a tensor is not fixed; export with fixed sizes");
    check(require(net->compiled, 0, index, &requirements), "sizing a tensor");
    check(LiteRtCreateManagedTensorBufferFromRequirements(net->environment, &type, requirements, buffer),
          "allocating a tensor");
    return type.element_type;
}

void load_network(Net *net, const char *path, long threads) {
    compile(net, path, threads);
    for (size_t i = 0; i < net->input_count; i++)
        net->input_types[i] = allocate(net, i, LiteRtGetSignatureInputTensorByIndex,
                                       LiteRtGetCompiledModelInputBufferRequirements, &net->inputs[i]);
    for (size_t i = 0; i < net->output_count; i++)
        allocate(net, i, LiteRtGetSignatureOutputTensorByIndex,
                 LiteRtGetCompiledModelOutputBufferRequirements, &net->outputs[i]);
}

/* Running */

void run_network(Net *net) {
    check(LiteRtRunCompiledModel(net->compiled, 0, net->input_count, net->inputs, net->output_count,
                                 net->outputs),
          "running the network");
}

bool is_fully_delegated(const Net *net) {
    bool fully;
    check(LiteRtCompiledModelIsFullyAccelerated(net->compiled, &fully), "asking about the delegate");
    return fully;
}

/* Inputs and outputs */

static void *lock(Handle buffer, int mode, size_t *size) {
    void *memory;
    check(LiteRtGetTensorBufferPackedSize(buffer, size), "sizing a buffer");
    check(LiteRtLockTensorBuffer(buffer, &memory, mode), "locking a buffer");
    return memory;
}

static void unlock(Handle buffer) { check(LiteRtUnlockTensorBuffer(buffer), "unlocking a buffer"); }

/* Opens a file the user named; no name is no file. */
static FILE *open_file(const char *path, const char *mode) {
    FILE *file = path ? fopen(path, mode) : NULL;
    if (path && file == NULL) fail(EXIT_SYSTEM, "%s: %s", path, strerror(errno));
    return file;
}

/* Values of many sizes, as an image has them. Types other than these may be indices, for which only
 * 0 is safe. */
static void fill_with_ramp(void *memory, size_t size, int32_t element_type) {
    memset(memory, 0, size);
    if (element_type == FLOAT32)
        for (size_t i = 0; i < size / sizeof(float); i++) ((float *)memory)[i] = (float)(i % 255) / 255 - 0.5f;
    if (element_type == INT8 || element_type == UINT8)
        for (size_t i = 0; i < size; i++) ((uint8_t *)memory)[i] = (uint8_t)(i % 255);
}

void fill_inputs(const Net *net, const char *path) {
    FILE *file = open_file(path, "rb");
    for (size_t i = 0; i < net->input_count; i++) {
        size_t size;
        void *memory = lock(net->inputs[i], LOCK_TO_WRITE, &size);
        if (file == NULL)
            fill_with_ramp(memory, size, net->input_types[i]);
        else if (fread(memory, 1, size, file) != size)
            fail(EXIT_MODEL, "%s: too short for the inputs", path);
        unlock(net->inputs[i]);
    }
    if (file && fgetc(file) != EOF) fail(EXIT_MODEL, "%s: too long for the inputs", path);
    if (file) fclose(file);
}

/* Writes all outputs to a file, if there is one; returns whether that went well. */
static bool write_outputs(const Net *net, FILE *file) {
    uint32_t hash = 2166136261u;
    size_t total = 0;
    bool well = true;
    for (size_t i = 0; i < net->output_count; i++) {
        size_t size;
        const uint8_t *memory = lock(net->outputs[i], LOCK_TO_READ, &size);
        for (size_t j = 0; j < size; j++) hash = (hash ^ memory[j]) * 16777619u;
        if (file) well &= fwrite(memory, 1, size, file) == size;
        total += size;
        unlock(net->outputs[i]);
    }
    printf("output_bytes=%zu output_fnv1a=%08x\n", total, hash);
    return well & (file == NULL || fclose(file) == 0);
}

void hand_out_outputs(const Net *net, const char *path) {
    char partial[4096]; /* half a file could pass for a whole one, so it gets its name when complete */
    if (path && snprintf(partial, sizeof partial, "%s.part", path) >= (int)sizeof partial)
        fail(EXIT_USAGE, "--output: the name is too long");
    FILE *file = open_file(path ? partial : NULL, "wb");
    if (write_outputs(net, file) && (file == NULL || rename(partial, path) == 0)) return;
    int reason = errno;
    remove(partial);
    fail(EXIT_SYSTEM, "%s: could not be written: %s", path, strerror(reason));
}
