/* Two tables: element types, and all names. */
#include "format/torch/names.h"

enum { F32, BF16, F16, F64, I32, I64, U8, BOOL, I8, I16, U16, U32, U64, C64, C128, E4M3, E5M2, E4M3Z, E5M2Z, BYTES };

static const torch_element elements[] = {
    [F32] = {"torch.float32", "torch.FloatStorage", "F32", FSDP_F32, 4},
    [BF16] = {"torch.bfloat16", "torch.BFloat16Storage", "BF16", FSDP_BF16, 2},
    [F16] = {"torch.float16", "torch.HalfStorage", "F16", FSDP_F16, 2},
    [F64] = {"torch.float64", "torch.DoubleStorage", "F64", FSDP_F64, 8},
    [I32] = {"torch.int32", "torch.IntStorage", "I32", FSDP_I32, 4},
    [I64] = {"torch.int64", "torch.LongStorage", "I64", FSDP_I64, 8},
    [U8] = {"torch.uint8", "torch.ByteStorage", "U8", FSDP_U8, 1},
    [BOOL] = {"torch.bool", "torch.BoolStorage", "BOOL", FSDP_DTYPE_COUNT, 1},
    [I8] = {"torch.int8", "torch.CharStorage", "I8", FSDP_DTYPE_COUNT, 1},
    [I16] = {"torch.int16", "torch.ShortStorage", "I16", FSDP_DTYPE_COUNT, 2},
    [U16] = {"torch.uint16", NULL, "U16", FSDP_DTYPE_COUNT, 2},
    [U32] = {"torch.uint32", NULL, "U32", FSDP_DTYPE_COUNT, 4},
    [U64] = {"torch.uint64", NULL, "U64", FSDP_DTYPE_COUNT, 8},
    [C64] = {"torch.complex64", "torch.ComplexFloatStorage", "C64", FSDP_DTYPE_COUNT, 8},
    [C128] = {"torch.complex128", "torch.ComplexDoubleStorage", "C128", FSDP_DTYPE_COUNT, 16},
    [E4M3] = {"torch.float8_e4m3fn", NULL, "F8_E4M3", FSDP_DTYPE_COUNT, 1},
    [E5M2] = {"torch.float8_e5m2", NULL, "F8_E5M2", FSDP_DTYPE_COUNT, 1},
    [E4M3Z] = {"torch.float8_e4m3fnuz", NULL, "F8_E4M3FNUZ", FSDP_DTYPE_COUNT, 1},
    [E5M2Z] = {"torch.float8_e5m2fnuz", NULL, "F8_E5M2FNUZ", FSDP_DTYPE_COUNT, 1},
    [BYTES] = {NULL, "torch.storage.UntypedStorage", "bytes", FSDP_DTYPE_COUNT, 1},
};
enum { N_ELEMENTS = sizeof elements / sizeof *elements };

#define ELEMENT(index) TORCH_ELEMENTS + (index)
#define CHECKPOINT "torch.distributed.checkpoint."

const pickle_global torch_globals[] = {
    {"collections.OrderedDict", PICKLE_CALLED | PICKLE_IS_DICT, TORCH_OTHER},
    {"builtins.dict", PICKLE_CALLED | PICKLE_IS_DICT, TORCH_OTHER},
    {"collections.Counter", PICKLE_CALLED, TORCH_OTHER},
    {"builtins.set", PICKLE_CALLED | PICKLE_IS_LIST, TORCH_OTHER},
    {"builtins.frozenset", PICKLE_CALLED | PICKLE_IS_LIST, TORCH_OTHER},
    {"builtins.bytearray", PICKLE_CALLED, TORCH_OTHER},
    {"builtins.complex", PICKLE_CALLED, TORCH_OTHER},
    /* as protocol 2 has them, which torch.save writes unless told otherwise; bytes are a text in Latin-1 there */
    {"__builtin__.set", PICKLE_CALLED | PICKLE_IS_LIST, TORCH_OTHER},
    {"__builtin__.frozenset", PICKLE_CALLED | PICKLE_IS_LIST, TORCH_OTHER},
    {"__builtin__.bytearray", PICKLE_CALLED, TORCH_OTHER},
    {"__builtin__.complex", PICKLE_CALLED, TORCH_OTHER},
    {"_codecs.encode", PICKLE_CALLED, TORCH_OTHER},
    {"torch._utils._rebuild_tensor", PICKLE_CALLED, TORCH_TENSOR_V1},
    {"torch._utils._rebuild_tensor_v2", PICKLE_CALLED, TORCH_TENSOR_V2},
    {"torch._utils._rebuild_tensor_v3", PICKLE_CALLED, TORCH_TENSOR_V3},
    {"torch._utils._rebuild_parameter", PICKLE_CALLED, TORCH_PARAMETER},
    {"torch._utils._rebuild_parameter_with_state", PICKLE_CALLED, TORCH_PARAMETER},
    {"torch.Size", PICKLE_CALLED, TORCH_SIZE},
    {"torch.device", PICKLE_CALLED, TORCH_OTHER},
    {"torch.serialization._get_layout", PICKLE_CALLED, TORCH_OTHER},
    {"torch.float32", 0, ELEMENT(F32)},
    {"torch.FloatStorage", 0, ELEMENT(F32)},
    {"torch.bfloat16", 0, ELEMENT(BF16)},
    {"torch.BFloat16Storage", 0, ELEMENT(BF16)},
    {"torch.float16", 0, ELEMENT(F16)},
    {"torch.HalfStorage", 0, ELEMENT(F16)},
    {"torch.float64", 0, ELEMENT(F64)},
    {"torch.DoubleStorage", 0, ELEMENT(F64)},
    {"torch.int32", 0, ELEMENT(I32)},
    {"torch.IntStorage", 0, ELEMENT(I32)},
    {"torch.int64", 0, ELEMENT(I64)},
    {"torch.LongStorage", 0, ELEMENT(I64)},
    {"torch.uint8", 0, ELEMENT(U8)},
    {"torch.ByteStorage", 0, ELEMENT(U8)},
    {"torch.bool", 0, ELEMENT(BOOL)},
    {"torch.BoolStorage", 0, ELEMENT(BOOL)},
    {"torch.int8", 0, ELEMENT(I8)},
    {"torch.CharStorage", 0, ELEMENT(I8)},
    {"torch.int16", 0, ELEMENT(I16)},
    {"torch.ShortStorage", 0, ELEMENT(I16)},
    {"torch.uint16", 0, ELEMENT(U16)},
    {"torch.uint32", 0, ELEMENT(U32)},
    {"torch.uint64", 0, ELEMENT(U64)},
    {"torch.complex64", 0, ELEMENT(C64)},
    {"torch.ComplexFloatStorage", 0, ELEMENT(C64)},
    {"torch.complex128", 0, ELEMENT(C128)},
    {"torch.ComplexDoubleStorage", 0, ELEMENT(C128)},
    {"torch.float8_e4m3fn", 0, ELEMENT(E4M3)},
    {"torch.float8_e5m2", 0, ELEMENT(E5M2)},
    {"torch.float8_e4m3fnuz", 0, ELEMENT(E4M3Z)},
    {"torch.float8_e5m2fnuz", 0, ELEMENT(E5M2Z)},
    {"torch.storage.UntypedStorage", 0, ELEMENT(BYTES)},
    {CHECKPOINT "metadata.Metadata", PICKLE_CALLED | PICKLE_STATE, TORCH_OTHER},
    {CHECKPOINT "metadata.TensorStorageMetadata", PICKLE_CALLED | PICKLE_STATE, TORCH_OTHER},
    {CHECKPOINT "metadata.BytesStorageMetadata", PICKLE_CALLED | PICKLE_STATE, TORCH_OTHER},
    {CHECKPOINT "metadata.TensorProperties", PICKLE_CALLED | PICKLE_STATE, TORCH_OTHER},
    {CHECKPOINT "metadata.ChunkStorageMetadata", PICKLE_CALLED | PICKLE_STATE, TORCH_OTHER},
    {CHECKPOINT "metadata.MetadataIndex", PICKLE_CALLED | PICKLE_STATE, TORCH_OTHER},
    {CHECKPOINT "metadata.StorageMeta", PICKLE_CALLED | PICKLE_STATE, TORCH_OTHER},
    {CHECKPOINT "metadata._MEM_FORMAT_ENCODING", PICKLE_CALLED, TORCH_OTHER},
    {CHECKPOINT "filesystem._StorageInfo", PICKLE_CALLED | PICKLE_STATE, TORCH_OTHER},
    {"pathlib.PosixPath", PICKLE_CALLED, TORCH_OTHER}, /* where a checkpoint was saved: never opened */
    {"pathlib._local.PosixPath", PICKLE_CALLED, TORCH_OTHER},
    {NULL, 0, 0},
};

const torch_element *torch_element_of(const pickle_value *value)
{
    if (!pickle_is(value, PICKLE_GLOBAL) || value->global->tag < TORCH_ELEMENTS)
        return NULL;
    return &elements[value->global->tag - TORCH_ELEMENTS];
}

const torch_element *torch_element_find(fsdp_dtype dtype)
{
    for (int i = 0; i < N_ELEMENTS; i++)
        if (elements[i].ours == dtype)
            return &elements[i];
    return NULL;
}
