# shellcheck shell=sh
# Runs a hook of a pool's program in the guest of a server or a client.
#
#   pool grant_server HOOK FIRST_PORT LAST_PORT   let a client use a share; prints `port N`
#   pool grant_client HOOK                        set a client up for its shares
#   pool revoke_server HOOK                       cut a lease off from a GPU; it is no error if it has no share there
#   pool revoke_all HOOK                          cut every lease off from the GPUs of this server
#   pool revoke_client HOOK                       remove what `grant` made in a client
#   pool health HOOK                              ask a server for its health
#
# Exit code 1 = the hook failed; `health` has another one if its hook could not be run. Every action may run again,
# whatever an earlier one did. The hook and this script have these variables in their environment:
#
#   LEASE                                         all but `health`
#   GPU (from 0), SERVER_ADDRESS                  actions of servers; PORT (set here) in `grant` and `revoke`
#   MEMORY_MIB, SECONDS_LEFT, CLIENT_ADDRESS      grant_server
#   SHARES                                        grant_client: address:port of each share, separated by commas
#
# The files of a pool are in ~/.gpuops-pool, which only the guest's user can read:
#
#   server  LEASE.GPU/        working directory of the hooks for one share
#           port-14833        link to the share that has that port: creating the link takes the port
#   client  LEASE/            working directory of the hooks for one lease; `grant` writes `env` there
#           env               link to the `env` of the newest lease
#   both    ended/LEASE.GPU   or LEASE: it was revoked here and is not granted again. Removed after a day: a gpuops that
#                             was stopped may try to grant a lease that another machine has ended since

action=$1
hook=$2

# Only one script at a time changes the files of the pool.
lock_pool() {
  exec 9> lock
  flock -w 60 9 || { echo "another run keeps the lock of this guest"; exit 1; }
}

# A shell of its own, without the lock. It is not run as a condition, in which `set -e` of the hook would have no effect.
run_hook() {
  /bin/sh -n -c "$hook" || exit 2
  /bin/sh -c "$hook" 9>&- || exit 1
}

# find_port DIRECTORY: set PORT to the port of the share, or to nothing.
find_port() {
  PORT=
  for link in port-*; do
    [ "$(readlink "$link")" != "$1" ] || PORT=${link#port-}
  done
  export PORT
}

# take_port DIRECTORY FIRST LAST: set PORT to the port of the share, the first free one if it has none.
take_port() {
  find_port "$1"
  port=$2
  while [ -z "$PORT" ]; do
    # ln makes the link completely or not at all, and never over another one or, with -n, in the directory behind it
    if ln -sn "$1" "port-$port" 2> /dev/null; then PORT=$port; fi
    port=$((port + 1))
    if [ -z "$PORT" ] && [ "$port" -gt "$3" ]; then
      rmdir "$1"
      echo "every port is taken"
      exit 1
    fi
  done
}

# make_directory DIRECTORY: make the directory of what is granted, unless it was revoked here.
make_directory() {
  if [ -e "ended/$1" ]; then
    echo "this lease has ended here"
    exit 1
  fi
  mkdir -p "$1" || exit 1
}

grant_server() {
  share="$LEASE.$GPU"
  make_directory "$share"
  take_port "$share" "$1" "$2"
  cd "$share" || exit 1
  run_hook
  echo "port $PORT"
}

grant_client() {
  make_directory "$LEASE"
  cd "$LEASE" || exit 1
  run_hook
  cd .. && ln -sf "$LEASE/env" "env.new.$LEASE" && mv -f "env.new.$LEASE" env
}

# revoke DIRECTORY...: `ended` is written last, so that a client is cut off even if the disk is full.
revoke() {
  for directory; do
    [ -d "$directory" ] && [ ! -L "$directory" ] || continue
    LEASE=${directory%.*}
    GPU=${directory##*.}
    export LEASE GPU
    find_port "$directory"
    cd "$directory" || exit 1
    run_hook
    cd .. || exit 1
    [ -z "$PORT" ] || rm -f "port-$PORT"
    [ "$(readlink env)" != "$directory/env" ] || rm -f env
    rm -rf -- "$directory" "env.new.$directory"
    mkdir -p ended && find ended -type f -mtime +0 -exec rm -f {} + && : > "ended/$directory" || exit 1
  done
}

revoke_all() {
  # shellcheck disable=SC2035 # names of shares begin with no dash
  revoke *.[0-9]*
}

remove_old_directories gpuops-pool- 60
enter_home 2
mkdir -p .gpuops-pool && cd .gpuops-pool || exit 2
[ "$action" = health ] || lock_pool
case "$action" in
  grant_server) grant_server "$3" "$4" ;;
  grant_client) grant_client ;;
  revoke_server) mkdir -p "$LEASE.$GPU" && revoke "$LEASE.$GPU" || exit 1 ;;
  revoke_client) mkdir -p "$LEASE" && revoke "$LEASE" || exit 1 ;;
  revoke_all) revoke_all ;;
  health) run_hook ;;
esac
