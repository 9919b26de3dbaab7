# What every batch script of this project does around the commands of its components. Plain bash, because it runs on the
# first node outside of any container. A copy of this file lies beside each submission, so that a waiting job runs the
# text that it was submitted with. The scheduler's own part is sourced before this file: slurm.sh says what it holds.
# The variables' names begin with lab_, because the user's setup runs in the same shell and its variables reach the run.
#
#   begin RUN FOLDER LINGER_S MAX_REQUEUES   for the run folder RUN; what is written goes into FOLDER
#   end_setup                                takes back what the user's setup has changed: shell options such as `set -e`,
#                                            functions with the names of these files' functions, and traps
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

lab_options=$(set +o)

begin() {
    lab_run=$1 lab_folder=$2 lab_linger_s=$3 lab_max_requeues=$4
    export ALIGNER_JOB_FOLDER=$lab_folder ALIGNER_JOB_ATTEMPT=$lab_attempt
    exec >>"$lab_folder/batch.log" 2>&1
    take_back_the_notice # which ended the last attempt
    rm -f "$lab_folder/exit.json" "$lab_folder/taken" "$lab_folder"/*.srun.log
    lab_names=() lab_pids=() lab_codes=() lab_failed='' lab_noticed='' lab_taken=''
    trap notice USR2
    trap the_end TERM
    lab_traps=$(trap -p USR2 TERM)
    say "attempt $lab_restarts of job $lab_job on $lab_hosts"
    end_old_steps
}

end_setup() {
    eval "$lab_options"
    eval "$lab_functions"
    eval "${lab_traps:-}" # none before `begin`
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
    "$@" 2>"$lab_folder/$name.srun.log" &
    lab_names+=("$name") lab_pids+=($!) lab_codes+=('')
}

notice() {
    say "the scheduler gave notice"
    if [ -e "$lab_run/control/stop" ]; then return; fi # the user is ending the run already: nothing to queue again
    lab_noticed=1
    # an old time, so that a user's request after the notice is newer, also where files have times of whole seconds
    mkdir -p "$lab_run/control" && touch -t 200001010000 "$lab_folder/notice" "$lab_folder/stop"
    mv -n "$lab_folder/stop" "$lab_run/control/stop" # -n: the user may have asked in the meantime
}

# Has the user asked for the stop? Without a notice, nobody else can have asked.
is_users_stop() { [ "$lab_run/control/stop" -nt "$lab_folder/notice" ]; }

# The stop that a notice asked for is no wish of the user's.
take_back_the_notice() {
    if ! is_users_stop; then rm -f "$lab_run/control/stop"; fi
    rm -f "$lab_folder/notice"
}

the_end() {
    if [ -n "$lab_taken" ]; then return; fi
    lab_taken=$(reason_of_the_end)
    lab_taken=${lab_taken:-CANCELLED} # a signal may have ended the question
    say "the scheduler ends the job: $lab_taken"
}

finish() {
    local deadline=''
    until over; do
        sleep 0.2 # not `wait`: bash loses a component's exit status when a signal interrupts `wait` at the component's end
    done
    local main=$((${#lab_names[@]} - 1))
    local code=${lab_codes[${lab_failed:-$main}]:-0} name=${lab_names[${lab_failed:-$main}]}
    end_the_rest
    if [ -n "$lab_taken" ]; then
        echo "$lab_taken" >"$lab_folder/taken"
        if [ "$lab_taken" = REQUEUED ]; then requeue_the_rest; fi
    elif wants_another "$code"; then
        queue_again "$code" "$name"
    else
        record "$code" "$name"
    fi
    exit "$code"
}

# Has the main component ended (and have the others left, or had their time), or has any failed?
over() {
    local i running=0 main=$((${#lab_names[@]} - 1))
    for i in "${!lab_pids[@]}"; do
        if [ -z "${lab_codes[i]}" ] && ! kill -0 "${lab_pids[i]}" 2>/dev/null; then
            wait "${lab_pids[i]}"
            lab_codes[i]=$?
            say "${lab_names[i]} ended with ${lab_codes[i]}"
            if is_being_ended; then the_end; fi
            if [ "${lab_codes[i]}" -ne 0 ]; then lab_failed=${lab_failed:-$i}; fi
        fi
        if [ -z "${lab_codes[i]}" ]; then running=1; fi
    done
    if [ -n "$lab_failed$lab_taken" ] || [ $running = 0 ]; then return 0; fi
    if [ -z "${lab_codes[main]}" ]; then return 1; fi
    deadline=${deadline:-$((SECONDS + lab_linger_s))}
    [ $SECONDS -ge "$deadline" ]
}

end_the_rest() {
    local i
    for i in "${!lab_pids[@]}"; do
        if [ -z "${lab_codes[i]}" ]; then kill -TERM "${lab_pids[i]}" 2>/dev/null; fi
    done
    # not `wait`, which a signal interrupts, and which waits for background processes of the setup, too
    for i in "${!lab_pids[@]}"; do
        while [ -z "${lab_codes[i]}" ] && kill -0 "${lab_pids[i]}" 2>/dev/null; do sleep 0.2; done
    done
}

wants_another() {
    if grep -q '"status": *"finished"' "$lab_run/run.json" 2>/dev/null; then return 1; fi
    if is_users_stop; then return 1; fi
    if is_preempted; then return 0; fi
    [ -n "$lab_noticed" ] || return 1
    # A trainer that failed on the way out has to be looked at; one that died of a signal resumes.
    [ "$1" -eq 0 ] || [ "$1" -ge 128 ]
}

queue_again() {
    local problem note
    # A granted request ends this job's processes with SIGTERM: this script, and the request's own command before it has
    # brought the answer.
    trap '' TERM
    if [ "$lab_restarts" -ge "$lab_max_requeues" ]; then
        note="it was queued again $lab_max_requeues times (max_requeues)"
    elif ! problem=$(requeue 2>&1); then
        note="it could not be queued again ($(one_line "$problem"))"
    else
        say "queued again"
        exit 0
    fi
    record "$1" "$2" "$note; submit it again to go on"
    if [ "$1" -eq 0 ]; then exit 75; fi # a job that depends on this one's success must not start from half a run
}

# record CODE COMPONENT [NOTE]
record() {
    trap '' USR2
    take_back_the_notice # it may have come when the run had just finished
    printf '{"returncode": %d, "component": "%s", "rank": 0, "note": "%s"}\n' "$1" "$2" "${3:-}" >"$lab_folder/.exit.json" &&
        mv "$lab_folder/.exit.json" "$lab_folder/exit.json"
}

lab_functions=$(declare -f)
