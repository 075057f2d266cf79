# shellcheck shell=sh
# Runs a command in the current directory and records its end: run_command COMMAND PRINTED_BYTES
#
#   printed.last   the last PRINTED_BYTES of what it printed
#   told           EXIT_CODE BEGAN ENDED, in nanoseconds since 1970; complete or absent
#
# The command has a shell of its own: whatever it does, the lines after it are run.

began_ns=$(date +%s%N)
/bin/sh -c "$1" > printed 2>&1 < /dev/null
code=$?
ended_ns=$(date +%s%N)
tail -c "$2" printed > printed.last
echo "$code $began_ns $ended_ns" > told.new
mv told.new told
exit "$code"
