# shellcheck shell=bash
# What both batch scripts share. Not a program: they read it with `source`.

# The checkout's own environment, where there is one.
export PATH=$PWD/.venv/bin:$PATH

# launch RESTARTS TORCHRUN-ARGUMENTS...: one torchrun on each node of the job, one process for each GPU of the node.
launch() {
    local restarts=$1
    shift
    local first address port
    first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    # The address by which Slurm itself reaches the node: its name need not mean anything to the other nodes.
    address=$(scontrol show node "$first" --oneliner | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2)
    # Two jobs that share a node must not share a port.
    port=$((20000 + SLURM_JOB_ID % 20000))
    # All ranks of a node share the CPUs of its one task.
    export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / SLURM_GPUS_ON_NODE))
    [ "$OMP_NUM_THREADS" -ge 1 ] || OMP_NUM_THREADS=1
    echo "job $SLURM_JOB_ID: $SLURM_JOB_NUM_NODES nodes ($SLURM_JOB_NODELIST), ranks meet at $address:$port"
    # srun no longer takes over --cpus-per-task (since Slurm 22.05). Only the first node's torchrun may open the meeting
    # point: without is_host each compares its own name with the address, and may be wrong.
    # SRUN_OPTIONS: words for srun, such as Pyxis' --container-image=...
    # shellcheck disable=SC2016,SC2086  # each node's own shell fills these in, not this one; words are to be split
    srun ${SRUN_OPTIONS:-} --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 --label bash -c '
        restarts=$1 endpoint=$2; shift 2
        [ "$SLURM_NODEID" -eq 0 ] && is_host=1 || is_host=0
        exec torchrun --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="$SLURM_GPUS_ON_NODE" \
            --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$endpoint" \
            --rdzv-conf="is_host=$is_host" --max-restarts="$restarts" \
            --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 "$@"
    ' launch "$restarts" "$address:$port" "$@"
}
