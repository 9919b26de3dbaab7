# What every batch script of this project does around the commands of its components. Plain bash, because it runs on the
# first node outside of any container. A copy of this file lies beside each submission, so that a waiting job runs the
# text that it was submitted with. The scheduler's own part is sourced before this file: slurm.sh says what it holds.
#
#   begin RUN FOLDER LINGER_S MAX_REQUEUES   for the run folder RUN; what is written goes into FOLDER
#   component NAME COMMAND …                 starts one component, on Slurm with srun
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
    export ALIGNER_JOB_FOLDER=$FOLDER ALIGNER_JOB_ATTEMPT=$ATTEMPT
    exec >>"$FOLDER/batch.log" 2>&1
    take_back_the_notice # which ended the last attempt
    rm -f "$FOLDER/exit.json" "$FOLDER/taken" "$FOLDER"/*.srun.log
    names=() pids=() codes=() failed='' noticed='' taken=''
    trap notice USR2
    trap the_end TERM
    say "attempt $RESTARTS of job $JOB on $HOSTS"
    end_old_steps
}

# A text of a program's for a string of JSON.
one_line() {
    local text=${1//[\"\\]/}
    printf '%s' "${text//[[:cntrl:]]/ }"
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
    # an old time, so that a user's request after the notice is newer, also where files have times of whole seconds
    mkdir -p "$RUN/control" && touch -t 200001010000 "$FOLDER/notice" "$FOLDER/stop"
    mv -n "$FOLDER/stop" "$RUN/control/stop" # -n: the user may have asked in the meantime
}

# Has the user asked for the stop? Without a notice, nobody else can have asked.
is_users_stop() { [ "$RUN/control/stop" -nt "$FOLDER/notice" ]; }

# The stop that a notice asked for is no wish of the user's.
take_back_the_notice() {
    if ! is_users_stop; then rm -f "$RUN/control/stop"; fi
    rm -f "$FOLDER/notice"
}

the_end() {
    if [ -n "$taken" ]; then return; fi
    taken=$(reason_of_the_end)
    taken=${taken:-CANCELLED} # a signal may have ended the question
    say "the scheduler ends the job: $taken"
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
        if [ "$taken" = REQUEUED ]; then requeue_the_rest; fi
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
            if is_being_ended; then the_end; fi
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
    if grep -q '"status": *"finished"' "$RUN/run.json" 2>/dev/null; then return 1; fi
    if is_users_stop; then return 1; fi
    if is_preempted; then return 0; fi
    [ -n "$noticed" ] || return 1
    # A trainer that failed on the way out has to be looked at; one that died of a signal resumes.
    [ "$1" -eq 0 ] || [ "$1" -ge 128 ]
}

queue_again() {
    # A granted request ends this job's processes with SIGTERM: this script, and the request's own command before it has
    # brought the answer.
    trap '' TERM
    if [ "$RESTARTS" -ge "$MAX_REQUEUES" ]; then
        record "$1" "$2" "it was queued again $MAX_REQUEUES times (max_requeues); submit it again to go on"
    elif ! problem=$(requeue 2>&1); then
        record "$1" "$2" "it could not be queued again ($(one_line "$problem")); submit it again to go on"
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
