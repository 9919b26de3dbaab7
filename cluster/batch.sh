# What every batch script of this project does around its `srun` lines. Plain bash, because it runs on the
# first node outside of any container. A copy of it lies beside each submission, so that a waiting job runs the
# text that it was submitted with.
#
#   begin RUN FOLDER LINGER_S MAX_REQUEUES   for the run folder RUN; what is written goes into FOLDER
#   component NAME srun …                    starts one component
#   finish                                   waits; then writes FOLDER/exit.json, or queues the job again
#
# The last component is the main one. The job ends when it has ended (the others get LINGER_S to save and leave),
# or when any component has failed. Three ways in which the scheduler takes the nodes away:
#   notice     USR2 to this script (time limit near; preemption with send_user_signal; Job.requeue): ask the
#              trainer for a checkpoint through RUN/control/stop, let it end, queue again
#   preemption SIGTERM to the tasks alone: the trainers stop by themselves; queue again
#   the end    SIGTERM to this script (cancelled, time limit, node down): no time for anything; FOLDER/taken says
#              what it was, for clusters that remember nothing

begin() {
    RUN=$1 FOLDER=$2 LINGER_S=$3 MAX_REQUEUES=$4
    # The last member of an array has the array's own id, which would mean all of them.
    JOB=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
    JOB=${JOB:-$SLURM_JOB_ID}
    export ALIGNER_JOB_FOLDER=$FOLDER ALIGNER_JOB_ATTEMPT=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
    exec >>"$FOLDER/batch.log" 2>&1
    take_back_the_notice # which ended the last attempt
    rm -f "$FOLDER/exit.json" "$FOLDER/taken" "$FOLDER"/*.srun.log
    names=() pids=() codes=() failed='' noticed='' taken=''
    trap notice USR2
    trap the_end TERM
    say "attempt ${SLURM_RESTART_COUNT:-0} of job $JOB on ${SLURM_JOB_NODELIST}"
    if is_hetjob && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then end_old_steps; fi
}

is_hetjob() { [ "${SLURM_HET_SIZE:-1}" -gt 1 ]; }

# When this script's node dies, Slurm starts the first component anew, and lets the others' steps run on without us.
end_old_steps() {
    local step left=60
    while [ $left -gt 0 ]; do
        local steps
        steps=$(squeue --steps -h -j "$JOB" -o %i 2>/dev/null | grep -E '\.[0-9]+$')
        if [ -z "$steps" ]; then return; fi
        for step in $steps; do
            say "ending step $step of the attempt before"
            scancel --signal=KILL "$step"
        done
        left=$((left - 1))
        sleep 1
    done
}

say() { printf '[batch %(%H:%M:%S)T] %s\n' -1 "$*"; } # no `date`: a signal to the job would end it

component() {
    local name=$1
    shift
    "$@" 2>"$FOLDER/$name.srun.log" &
    names+=("$name") pids+=($!) codes+=('')
}

notice() {
    say "the scheduler gave notice"
    if [ -e "$RUN/control/stop" ]; then return; fi # the user is ending the run already: nothing to queue again
    noticed=1
    mkdir -p "$RUN/control" && touch "$FOLDER/notice" "$RUN/control/stop"
}

# The stop that a notice asked for is no wish of the user's.
take_back_the_notice() {
    if [ -e "$FOLDER/notice" ]; then rm -f "$RUN/control/stop" "$FOLDER/notice"; fi
}

the_end() {
    if [ -n "$taken" ]; then return; fi
    case "$(scontrol show job "$JOB" 2>/dev/null)" in
    *JobState=PENDING*) taken=REQUEUED ;; # a node went down, and the scheduler has queued us again
    *Reason=TimeLimit*) taken=TIMEOUT ;;
    *) taken=CANCELLED ;; # or a node of another component went down: the scheduler knows, and is asked first
    esac
    say "the scheduler ends the job: $taken"
}

# A trainer that got SIGTERM may have ended in good order before this script is told, or be of a component that
# was cancelled alone. The scheduler knows first: it changes the state, and then sends signals.
ask_the_scheduler() {
    local states
    states=$(squeue -h -t all -j "$JOB" -o %T 2>/dev/null) || return
    if [ -n "$states" ] && grep -qvx RUNNING <<<"$states"; then the_end; fi
}

finish() {
    local deadline=''
    until over; do
        sleep 0.2 &
        wait $! # a signal interrupts this wait, not the components
    done
    local main=$((${#names[@]} - 1))
    local code=${codes[${failed:-$main}]:-0} name=${names[${failed:-$main}]}
    end_the_rest
    if [ -n "$taken" ]; then
        echo "$taken" >"$FOLDER/taken"
        # Slurm queued the component that lost its node again, and would take our end for the others' end.
        if [ "$taken" = REQUEUED ] && is_hetjob; then scontrol requeue "$JOB"; fi
    elif wants_another "$code"; then
        queue_again "$code" "$name"
    else
        record "$code" "$name"
    fi
    exit "$code"
}

# Has the main component ended (and have the others left, or had their time), or has any failed?
over() {
    local i running=0 main=$((${#names[@]} - 1))
    for i in "${!pids[@]}"; do
        if [ -z "${codes[i]}" ] && ! kill -0 "${pids[i]}" 2>/dev/null; then
            wait "${pids[i]}"
            codes[i]=$?
            say "${names[i]} ended with ${codes[i]}"
            ask_the_scheduler
            if [ "${codes[i]}" -ne 0 ]; then failed=${failed:-$i}; fi
        fi
        if [ -z "${codes[i]}" ]; then running=1; fi
    done
    if [ -n "$failed$taken" ] || [ $running = 0 ]; then return 0; fi
    if [ -z "${codes[main]}" ]; then return 1; fi
    deadline=${deadline:-$((SECONDS + LINGER_S))}
    [ $SECONDS -ge "$deadline" ]
}

end_the_rest() {
    local i
    for i in "${!pids[@]}"; do
        if [ -z "${codes[i]}" ]; then kill -TERM "${pids[i]}" 2>/dev/null; fi
    done
    wait
}

wants_another() {
    # PreemptTime is set while a preempted job has its grace; SIGTERM alone could also be `srun` ending a failed step.
    if scontrol show job "$JOB" 2>/dev/null | grep -q 'PreemptTime=[0-9]'; then
        touch "$FOLDER/notice"
        return 0
    fi
    [ -n "$noticed" ] || return 1
    # A trainer that failed on the way out has to be looked at; one that died of a signal resumes.
    [ "$1" -eq 0 ] || [ "$1" -ge 128 ] || return 1
    ! grep -q '"status": *"finished"' "$RUN/run.json" 2>/dev/null
}

queue_again() {
    # A granted request ends this job's processes with SIGTERM: us, and scontrol before it has brought the answer.
    trap '' TERM
    if [ "${SLURM_RESTART_COUNT:-0}" -ge "$MAX_REQUEUES" ]; then
        record "$1" "$2" "it was queued again $MAX_REQUEUES times (max_requeues); submit it again to go on"
    elif ! problem=$(scontrol requeue "$JOB" 2>&1); then
        record "$1" "$2" "it could not be queued again (${problem//[\"\\]/}); submit it again to go on"
    else
        say "queued again"
        exit 0
    fi
}

# record CODE COMPONENT [NOTE]
record() {
    trap '' USR2
    take_back_the_notice # it may have come when the run had just finished
    printf '{"returncode": %d, "component": "%s", "rank": 0, "note": "%s"}\n' "$1" "$2" "$3" >"$FOLDER/.exit.json"
    mv "$FOLDER/.exit.json" "$FOLDER/exit.json"
}
