# shellcheck shell=sh
# Functions that several guest scripts use. gpuops puts this file before them. POSIX sh with GNU or busybox tools.

# enter_home EXIT_CODE: change to the user's home directory, or exit. New files are for this user only.
enter_home() {
  umask 077
  cd "${HOME:?}" || exit "$1"
}

# find_processes GREP_OPTION...: print the IDs of the processes with a matching environment variable.
find_processes() {
  grep -lzs "$@" /proc/[0-9]*/environ | sed "s:/proc/::;s:/environ::"
}

# signal_processes SIGNAL IDS: send a signal to processes; some of them may have ended.
signal_processes() {
  # shellcheck disable=SC2086 # the IDs are separate words
  [ -z "$2" ] || kill "-$1" $2 2> /dev/null
}

# remove_old_directories PREFIX MINUTES: remove the temporary directories of earlier gpuops runs that were killed.
# The script starts in a directory of the same kind, next to them.
remove_old_directories() {
  find "${PWD%/*}" -maxdepth 1 -type d -name "$1*" -user "$(id -u)" -mmin "+$2" -exec rm -rf {} +
}
