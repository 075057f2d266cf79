# shellcheck shell=sh
# Prepares a guest of a cluster for a run, starts the launcher, ends and removes what the run made.
#
#   cluster_run end_earlier CLUSTER RUN     end and remove what earlier runs of the cluster left; prints `home DIRECTORY`
#   cluster_run prepare CLUSTER RUN         the same, and make the directory of this run
#   cluster_run prepare_key CLUSTER RUN     the same, and make a key pair; prints the public key
#   cluster_run admit CLUSTER RUN KEY       allow logins with this public key
#   cluster_run start CLUSTER RUN SSH_PORT KNOWN_HOSTS HOSTFILE PART_BYTES SHOWN_BYTES WORD...
#                                           run the launcher with these words and store its output in files part.0,
#                                           part.1 ..., each complete or absent; SSH_PORT is empty if the launcher needs
#                                           no SSH. Exit code: that of the launcher
#   cluster_run stop CLUSTER RUN            end every process of the run; exit code 1 = a process remains
#   cluster_run clean CLUSTER RUN           remove the files of the run; exit code 1 = a file remains
#
# A run has a directory of its own, ~/.gpuops-cluster/CLUSTER/RUN, which only the guest's user can read, and a line of
# ~/.ssh/authorized_keys. Both have the names of cluster and run: the next run of the same cluster finds what a killed
# one left. A run never removes its own files while it prepares: guests may share a home directory.
#
# The key pair is made in the guest of rank 0, and the private key never leaves it. A login with the public key has no
# terminal and forwards nothing (`restrict`), and its processes have the run's variable, so that they are found again
# (sshd(8), "AUTHORIZED_KEYS FILE FORMAT").
#
# Environment variables: GPUOPS_CLUSTER_RUN=CLUSTER/RUN in the launcher and all its processes; GPUOPS_CLUSTER_RUN_STEP
# with the same value in every action but `start`: the next run ends one that goes on after its gpuops was killed.

action=$1
cluster=$2
run=$3
shift 3
mark="$cluster/$run"
directory=".gpuops-cluster/$mark"
comment="gpuops-cluster-run:$cluster:"
keys_file=.ssh/authorized_keys

# Escape the dots of a name for grep.
as_pattern() {
  printf "%s" "$1" | sed "s/[.]/[.]/g"
}

# End the scripts of earlier runs before they do more. Scripts that start later are not affected.
kill_earlier_scripts() {
  pattern="^GPUOPS_CLUSTER_RUN_STEP=$(as_pattern "$cluster")/"
  ids=$(
    for id in $(find_processes -e "$pattern"); do
      # a process that has ended meanwhile, such as those of find_processes, has no variable of another run
      grep -zs -e "$pattern" "/proc/$id/environ" | tr "\0" "\n" |
        grep -qvxF -e "GPUOPS_CLUSTER_RUN_STEP=$mark" && echo "$id"
    done
  )
  [ -z "$ids" ] || { signal_processes KILL "$ids"; sleep 0.5; }
}

# end_processes MARK: end the processes whose mark begins with this: ask four times, then kill.
end_processes() {
  pattern="^GPUOPS_CLUSTER_RUN=$(as_pattern "$1")"
  for signal in TERM TERM TERM TERM KILL KILL KILL KILL; do
    ids=$(find_processes -e "$pattern")
    [ -n "$ids" ] || break
    signal_processes "$signal" "$ids"
    sleep 0.5
  done
  [ -z "$(find_processes -e "$pattern")" ] || exit 1
}

# remove_keys COMMENT [KEPT_COMMENT]: remove the lines with the first comment, except for those with the second one.
# The file is replaced as a whole, by a file of another name in each guest: guests that share a home directory do this
# at the same time.
remove_keys() {
  grep -qsF -e "$1" "$keys_file" || return 0
  new=$(mktemp "$keys_file.gpuops.XXXXXX") && cp -p "$keys_file" "$new" || return 1
  {
    grep -vF -e "$1" "$keys_file"
    [ -z "${2-}" ] || grep -F -e "$2" "$keys_file"
  } > "$new"
  if [ -s "$new" ]; then mv "$new" "$keys_file"; else rm -f "$keys_file" "$new"; fi
}

remove_empty_directories() {
  rmdir ".gpuops-cluster/$cluster" .gpuops-cluster 2> /dev/null
}

end_earlier() {
  own=$PWD
  kill_earlier_scripts
  for other in "${own%/*}"/gpuops-cluster-run-*; do
    [ "$other" = "$own" ] || rm -rf "$other"
  done
  enter_home 1
  echo "home $PWD"
  end_processes "$cluster/"
  for other in ".gpuops-cluster/$cluster"/*; do
    [ "$other" = "$directory" ] || rm -rf "$other"
  done
  remove_keys "$comment" "$comment$run"
  remove_empty_directories
  return 0
}

prepare() {
  end_earlier
  mkdir -p "$directory" || exit 1
}

make_key() {
  ssh-keygen -q -t ed25519 -N "" -C "$comment$run" -f "$directory/key" || exit 1
  cat "$directory/key.pub"
}

admit() {
  enter_home 1
  mkdir -p .ssh || exit 1
  # a last line without its end would be joined with ours
  if [ -s "$keys_file" ] && [ -n "$(tail -c 1 "$keys_file")" ]; then echo >> "$keys_file"; fi
  command="exec env GPUOPS_CLUSTER_RUN=$mark /bin/sh -c \\\"\$SSH_ORIGINAL_COMMAND\\\""
  printf "%s\n" "command=\"$command\",restrict $1 $comment$run" >> "$keys_file"
}

# make_ssh PORT: make an `ssh` that the launcher finds before that of the guest. It uses the key of this run and knows
# no other hosts. If an option is given twice, ssh uses the first one (ssh_config(5)), so StrictHostKeyChecking=no of
# horovodrun has no effect.
make_ssh() {
  ssh=$(command -v ssh) || { echo "ssh is not installed" >&2; exit 127; }
  mkdir -p bin
  PATH="$run_path/bin:$PATH"
  export PATH
  {
    echo "#!/bin/sh"
    printf "%s \\\\\n" "exec '$ssh' -p $1 -o BatchMode=yes -o IdentitiesOnly=yes -o IdentityFile='\"$run_path/key\"'"
    printf "%s\n" "  -o StrictHostKeyChecking=yes -o UserKnownHostsFile='\"$run_path/known_hosts\"' \"\$@\""
  } > bin/ssh
  chmod 700 bin/ssh
}

# store_parts LAUNCHER_ID PART_BYTES SHOWN_BYTES: store the output in parts until the launcher has ended.
store_parts() {
  part=0
  stored=0
  has_ended=
  until [ -n "$has_ended" ]; do
    if [ -e ended ] || ! kill -0 "$1" 2> /dev/null; then has_ended=1; fi
    size=$(wc -c < out)
    while [ "$size" -gt "$stored" ] && [ "$stored" -lt "$3" ]; do
      tail -c "+$((stored + 1))" out | head -c "$2" > new
      stored=$((stored + $(wc -c < new)))
      mv new "part.$part"
      part=$((part + 1))
    done
    if [ "$size" -gt "$3" ]; then
      : > ./cut
      : > out
      stored=$3
    fi
    [ -n "$has_ended" ] || sleep 0.5
  done
}

start() {
  ssh_port=$1
  known_hosts=$2
  hostfile=$3
  part_bytes=$4
  shown_bytes=$5
  shift 5
  enter_home 1
  home_path=$PWD
  cd "$directory" || exit 1
  run_path=$PWD
  if [ -n "$ssh_port" ]; then
    printf "%s" "$known_hosts" > known_hosts
    printf "%s" "$hostfile" > hostfile
    make_ssh "$ssh_port"
  fi
  # mpirun refuses root without both (mpirun(1), "Running as root"); the admin chose root as guest login
  if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
  : > out
  cd "$home_path" || exit 1
  (
    "$@"
    echo $? > "$run_path/ended.new"
    mv "$run_path/ended.new" "$run_path/ended"
  ) >> "$run_path/out" 2>&1 < /dev/null &
  launcher=$!
  cd "$run_path" || exit 1
  store_parts "$launcher" "$part_bytes" "$shown_bytes"
  wait "$launcher"
  [ -e ended ] && exit "$(cat ended)"
  exit 137
}

clean() {
  enter_home 1
  remove_keys "$comment$run"
  rm -rf "$directory"
  remove_empty_directories
  [ ! -e "$directory" ] && ! grep -qsF -e "$comment$run" "$keys_file"
}

case "$action" in
  end_earlier) end_earlier ;;
  prepare) prepare ;;
  prepare_key) prepare && make_key ;;
  admit) admit "$1" ;;
  start) start "$@" ;;
  stop) end_processes "$mark" ;;
  clean) clean ;;
esac
