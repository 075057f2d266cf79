# shellcheck shell=sh
# Starts, watches and stops the container of a job in its guest.
#
#   job probe                                      print the home directory, the runtimes and the missing tools
#   job prepare ATTEMPT                            make the directory for the secrets of an attempt and print "ready",
#                                                  unless the attempt has begun
#   job start ATTEMPT RUNTIME RUN_SCRIPT WORD...   start the container with these words, unless the attempt has begun;
#                                                  exit code 1 = it has not begun
#   job look ATTEMPT                               print the state
#   job checkpoint ATTEMPT LIMIT_S WORD...         run these words for at most LIMIT_S seconds, one such run at a time;
#                                                  exit code: theirs, 124 or 137 = they took longer (timeout(1)),
#                                                  76 = the attempt does not run
#   job revoke ATTEMPT                             prevent the start of an attempt that has not begun, print the state;
#                                                  absent = it will not start, exit code 2 = undecided
#   job stop ATTEMPT GRACE_S                       ask the attempt to end, kill it after GRACE_S seconds, print the
#                                                  state; exit code 1 = it still runs
#   job clear ATTEMPT                              remove the files of an attempt, except for the one that prevents
#                                                  another start; exit code 1 = a file remains, 75 = the attempt runs
#
# An attempt has a directory of its own, ~/.gpuops-jobs/ATTEMPT:
#
#   runtime     podman, docker or apptainer
#   run         job_container.sh, which starts the container and waits for its end
#   lock        locked (flock) by `run` while it runs. The lock ends with the process, and with the guest
#   began       seconds since 1970, written before the container starts. An attempt that has begun does not start again
#   log.0 ...   output of the container in parts of 512 KiB: eight from the beginning, then one of the end
#   secrets     files that the container finds in /run/secrets; removed when it has ended
#   revoked     exists if the attempt must not start: it never began, or it has ended and all other files are removed
#   asked       exists from when gpuops asked the container to end
#   ended       EXIT_CODE BEGAN ENDED, written last and in one piece
#
# gpuops finds the process of the runtime by its environment variable GPUOPS_JOB, the path of the directory: process IDs
# are used again, and another user or another container of this machine may have an attempt of the same name.

action=$1
attempt=${2-}
container="gpuops-$attempt"

# Guest operations start no login shell, so this adds the path of the user's own programs.
enter_jobs() {
  enter_home 1
  PATH="$HOME/.local/bin:$PATH"
  export PATH
}

# Change to the directory of the attempt, if there is one.
enter_attempt() {
  enter_jobs
  cd ".gpuops-jobs/$attempt" 2> /dev/null || return 1
  runtime=$(cat runtime 2> /dev/null)
  mark="GPUOPS_JOB=$(pwd -P)"
}

enter_attempt_or_print_absent() {
  enter_attempt || { echo absent; exit 0; }
}

find_runtime_processes() {
  find_processes -x -F -e "$mark"
}

is_locked() {
  [ -e lock ] && ! flock -n lock true
}

# `run` may have been killed while the container goes on: then only the runtime knows.
is_running() {
  is_locked && return 0
  case "$runtime" in
    podman | docker)
      [ "$("$runtime" container inspect -f "{{.State.Running}}" "$container" 2> /dev/null)" = true ] ;;
    *) [ -n "$(find_runtime_processes)" ] ;;
  esac
}

is_unfinished() {
  [ -e began ] && [ ! -e ended ] && is_running
}

print_state() {
  began=$(cat began 2> /dev/null)
  [ -z "$began" ] || began=" began $began"
  asked=
  [ ! -e asked ] || asked=" asked"
  if [ ! -e began ]; then
    echo absent
  elif [ -e ended ]; then
    print_end
  elif is_running; then
    echo "running$began"
  elif [ -e ended ]; then
    print_end
  else
    echo "ended$began$asked"
  fi
}

print_end() {
  read -r code began_s ended_s < ended
  echo "ended $code began $began_s ended $ended_s$asked"
}

# wait_until LIMIT COMMAND...: try a command each 0.1 seconds, at most LIMIT + 1 times.
wait_until() {
  tries=$1
  shift
  until "$@"; do
    [ "$tries" -gt 0 ] || return 1
    tries=$((tries - 1))
    sleep 0.1
  done
}

probe() {
  enter_jobs
  echo "home $PWD"
  for name in podman docker apptainer; do
    command -v "$name" > /dev/null && echo "runtime $name"
  done
  for name in flock setsid mkfifo dd timeout; do
    command -v "$name" > /dev/null || echo "lacks $name"
  done
}

prepare() {
  enter_jobs
  mkdir -p ".gpuops-jobs/$attempt" && cd ".gpuops-jobs/$attempt" || exit 1
  if [ ! -e began ] && [ ! -e revoked ]; then mkdir -p secrets && echo ready; fi
}

start() {
  runtime=$1
  run_script=$2
  shift 2
  remove_old_directories gpuops-job- 1440
  enter_jobs
  # a revoked attempt is remembered for a week: no call of gpuops lasts for days
  find .gpuops-jobs -maxdepth 2 -name revoked -mmin +10080 2> /dev/null |
    while read -r file; do rm -rf "${file%/revoked}"; done
  mkdir -p ".gpuops-jobs/$attempt" && cd ".gpuops-jobs/$attempt" || exit 1
  if [ -e began ] || [ -e revoked ]; then exit 0; fi
  echo "$runtime" > runtime
  printf "%s" "$run_script" > "run.$$"
  mv "run.$$" run || exit 1
  setsid /bin/sh ./run "$attempt" "$@" > /dev/null 2>&1 < /dev/null &
  wait_until 100 test -e began || exit 1
}

checkpoint() {
  limit_s=$1
  shift
  enter_attempt_or_print_absent
  is_unfinished || exit 76
  timeout -k 5 "$limit_s" flock checkpoint "$@" > checkpoint.out 2>&1 < /dev/null
  code=$?
  tail -c 500 checkpoint.out
  exit "$code"
}

begins_or_is_revoked() {
  flock -n lock sh -c "[ -e began ] || : > revoked" || [ -e began ]
}

revoke() {
  (enter_jobs && mkdir -p ".gpuops-jobs/$attempt") || exit 2
  enter_attempt_or_print_absent
  # another call may hold the lock to start it, and it has not begun
  wait_until 100 begins_or_is_revoked || exit 2
  if [ -e revoked ]; then rm -rf secrets; fi
  print_state
}

stop() {
  until_s=$(($(date +%s) + $1))
  enter_attempt_or_print_absent
  # first: gpuops causes the end from here on
  if is_unfinished; then : > asked || exit 1; fi
  while is_unfinished; do
    now_s=$(date +%s)
    signal=KILL
    left_s=0
    if [ "$now_s" -lt "$until_s" ]; then
      signal=TERM
      left_s=$((until_s - now_s))
    fi
    case "$runtime" in podman | docker) "$runtime" stop -t "$left_s" "$container" > /dev/null 2>&1 ;; esac
    tries=0
    while [ "$tries" -lt 20 ] && [ ! -e ended ] && is_locked; do
      # the image is still pulled, or the runtime does not answer or has no `stop`: ask its own process
      if [ "$tries" = 10 ] || [ "$runtime$tries" = apptainer0 ]; then
        signal_processes "$signal" "$(find_runtime_processes)"
      fi
      tries=$((tries + 1))
      sleep 0.1
    done
    [ "$now_s" -lt $((until_s + 30)) ] || exit 1
  done
  print_state
}

clear_attempt() {
  enter_attempt || exit 0
  if is_unfinished; then exit 75; fi
  case "$runtime" in podman | docker) "$runtime" rm -f "$container" > /dev/null 2>&1 ;; esac
  # a call that starts it holds the lock; another one may have looked before the attempt began, and be about to start it
  wait_until 100 flock -n lock sh -c ": > revoked" || exit 75
  rm -f began # first, so that a look in between sees all files or none
  find . ! -name . ! -name revoked -prune -exec rm -rf {} +
  [ "$(ls -A)" = revoked ]
}

if [ "$action" = probe ]; then shift; else shift 2; fi
case "$action" in
  probe) probe ;;
  prepare) prepare ;;
  start) start "$@" ;;
  look) enter_attempt_or_print_absent && print_state ;;
  checkpoint) checkpoint "$@" ;;
  revoke) revoke ;;
  stop) stop "$@" ;;
  clear) clear_attempt ;;
esac
