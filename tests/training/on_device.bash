# Where the runs of a test compute. With FSDP_TEST_DEVICE=cuda all ranks share the first GPU: each says that it is a host of
# its own, and NCCL goes over sockets. For tests that have set `fsdp` to the program and `work` to a folder of their own.
device=(--device cpu)
if [[ ${FSDP_TEST_DEVICE:-cpu} == cuda ]]; then
    [[ -r /dev/nvidiactl ]] || { echo "no CUDA device" && exit 77; }
    device=(--device cuda --deterministic)
    export FSDP_GPU=0 NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0
    mkdir "$work/host"
    printf '#!/bin/bash\nNCCL_HOSTID=host-${LOCAL_RANK:-0} exec %q "$@"\n' "$(realpath "$fsdp")" >"$work/host/fsdp"
    chmod +x "$work/host/fsdp"
    fsdp=$work/host/fsdp
fi
