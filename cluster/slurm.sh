# How batch.sh asks Slurm. Each scheduler's part sets lab_job, lab_restarts, lab_attempt and lab_hosts when it is sourced,
# and defines the functions that follow; none of them may end the script.

# The last member of an array has the array's own id, which would mean all of them.
lab_job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
lab_job=${lab_job:-$SLURM_JOB_ID}
lab_restarts=${SLURM_RESTART_COUNT:-0}      # how often the job has been queued again
lab_attempt=$SLURM_JOB_ID.$lab_restarts     # a name that no other attempt has
lab_hosts=$SLURM_JOB_NODELIST

is_hetjob() { [ "${SLURM_HET_SIZE:-1}" -gt 1 ]; }

# Ends what an earlier attempt has left behind. When this script's node dies, Slurm starts the first component anew, and
# lets the other components' steps run on without a script.
end_old_steps() {
    if ! is_hetjob || [ "$lab_restarts" = 0 ]; then return; fi
    local step left=60
    while [ $left -gt 0 ]; do
        local steps
        steps=$(squeue -a --steps -h -j "$lab_job" -o %i 2>/dev/null | grep -E '\.[0-9]+$')
        if [ -z "$steps" ]; then return; fi
        for step in $steps; do
            say "ending step $step of the attempt before"
            scancel --signal=KILL "$step"
        done
        left=$((left - 1))
        sleep 1
    done
}

# Prints why the scheduler ends the job: REQUEUED, TIMEOUT or CANCELLED.
reason_of_the_end() {
    case "$(scontrol show job "$lab_job" 2>/dev/null)" in
    *JobState=PENDING*) echo REQUEUED ;; # a node went down, and Slurm has queued the job again
    *Reason=TimeLimit*) echo TIMEOUT ;;
    *) echo CANCELLED ;; # or a node of another component went down: Slurm knows, and is asked first
    esac
}

# Whether the scheduler has begun to end the job. A trainer that got SIGTERM may have ended in good order before this
# script is told, or be of a component that was cancelled alone. Slurm changes the state first, and then sends signals.
is_being_ended() {
    local states
    states=$(squeue -a -h -t all -j "$lab_job" -o %T 2>/dev/null) || return 1
    [ -n "$states" ] && grep -qvx RUNNING <<<"$states"
}

# Whether the job has to make room for another one. PreemptTime is set while a preempted job has its grace; SIGTERM alone
# could also be `srun` ending a failed step.
is_preempted() { scontrol show job "$lab_job" 2>/dev/null | grep -q 'PreemptTime=[0-9]'; }

# Puts the job back into the queue; the message of a refusal goes to stderr.
requeue() { scontrol requeue "$lab_job"; }

# What is left to do when the scheduler itself has queued the job again. Slurm queued the component that lost its node,
# and would take this script's end for the end of the other components.
requeue_the_rest() { if is_hetjob; then requeue; fi; }
