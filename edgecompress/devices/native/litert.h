/* The functions of LiteRT that the runner calls.
 *
 * LiteRT comes as a library without headers, so what is used of its C interface is declared here, as
 * of release 2.3. Every function returns 0 on success. What is made is never given back: the runner
 * makes everything once and ends.
 */
#ifndef EDGECOMPRESS_LITERT_H
#define EDGECOMPRESS_LITERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int Status;
typedef void *Handle;

typedef struct {
    int32_t element_type;
    uint32_t rank : 7;
    uint32_t has_strides : 1;
    int32_t dimensions[8]; /* below 0: not fixed */
    uint32_t strides[8];
} TensorType;
_Static_assert(sizeof(TensorType) == 72, "LiteRtRankedTensorType has 72 bytes");

enum { FLOAT32 = 1, UINT8 = 3, INT8 = 9 };    /* LiteRtElementType */
enum { CPU = 1 };                             /* LiteRtHwAccelerators */
enum { LOCK_TO_READ = 0, LOCK_TO_WRITE = 1 }; /* LiteRtTensorBufferLockMode */

Status LiteRtCreateEnvironment(int count, const void *options, Handle *environment);
Status LiteRtCreateModelFromFile(Handle environment, const char *path, Handle *model);

Status LiteRtCreateOptions(Handle *options);
Status LiteRtSetOptionsHardwareAccelerators(Handle options, int accelerators);
Status LiteRtCreateOpaqueOptions(const char *name, void *text, void (*release)(void *), Handle *opaque);
Status LiteRtAddOpaqueOptions(Handle options, Handle opaque);

Status LiteRtCreateCompiledModel(Handle environment, Handle model, Handle options, Handle *compiled);
Status LiteRtCompiledModelIsFullyAccelerated(Handle compiled, bool *fully);
Status LiteRtRunCompiledModel(Handle compiled, size_t signature, size_t input_count, Handle *inputs,
                              size_t output_count, Handle *outputs);

Status LiteRtGetModelSignature(Handle model, size_t index, Handle *signature);
Status LiteRtGetNumSignatureInputs(Handle signature, size_t *count);
Status LiteRtGetNumSignatureOutputs(Handle signature, size_t *count);
Status LiteRtGetSignatureInputTensorByIndex(Handle signature, size_t index, Handle *tensor);
Status LiteRtGetSignatureOutputTensorByIndex(Handle signature, size_t index, Handle *tensor);
Status LiteRtGetRankedTensorType(Handle tensor, TensorType *type);

Status LiteRtGetCompiledModelInputBufferRequirements(Handle compiled, size_t signature, size_t index,
                                                     Handle *requirements);
Status LiteRtGetCompiledModelOutputBufferRequirements(Handle compiled, size_t signature, size_t index,
                                                      Handle *requirements);
Status LiteRtCreateManagedTensorBufferFromRequirements(Handle environment, const TensorType *type,
                                                       Handle requirements, Handle *buffer);
Status LiteRtGetTensorBufferPackedSize(Handle buffer, size_t *size);
Status LiteRtLockTensorBuffer(Handle buffer, void **memory, int mode);
Status LiteRtUnlockTensorBuffer(Handle buffer);

#endif
