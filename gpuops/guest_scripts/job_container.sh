# shellcheck shell=sh
# Runs the container of an attempt at a job, waits for its end and keeps its output: run ATTEMPT WORD...
# The words are the command line of the container. job.sh starts this script in the directory of the attempt.

part_bytes=524288
head_parts=8
# Of longer output, between one and two times this many bytes of the end are kept.
tail_bytes=262144

exec 9> lock
flock -n 9 || exit 0
if [ -e began ] || [ -e revoked ]; then exit 0; fi
shift
date +%s > began.new && mv began.new began || exit 1

# Write the output in parts. Each dd reads once, and never beyond the end of a part.
keep_output() {
  part=0
  size=0
  dropped=0
  while :; do
    if [ "$part" -lt "$head_parts" ]; then
      file="log.$part"
      room=$((part_bytes - size))
    else
      file=tail.new
      room=$((tail_bytes - size))
    fi
    [ "$room" -le 65536 ] || room=65536
    dd "bs=$room" count=1 >> "$file" 2> /dev/null || { cat > /dev/null; return 3; }
    new_size=$(wc -c < "$file")
    [ "$new_size" -gt "$size" ] || return 0
    size=$new_size
    if [ "$part" -lt "$head_parts" ]; then
      if [ "$size" -ge "$part_bytes" ]; then
        part=$((part + 1))
        size=0
      fi
    elif [ "$size" -ge "$tail_bytes" ]; then
      [ ! -e tail.old ] || dropped=$((dropped + tail_bytes))
      mv tail.new tail.old
      echo "$dropped" > dropped
      size=0
    fi
  done
}

rm -f pipe
mkfifo pipe || exit 1
keep_output < pipe 9>&- &
reader=$!
env "GPUOPS_JOB=$(pwd -P)" setsid "$@" > pipe 2>&1 < /dev/null 9>&- &
wait $!
code=$?
rm -rf secrets
# a process that the container has left may still have the pipe open
tries=0
while kill -0 "$reader" 2> /dev/null && [ "$tries" -lt 100 ]; do
  tries=$((tries + 1))
  sleep 0.1
done
kill "$reader" 2> /dev/null
wait "$reader"
reader_code=$?
if [ -e tail.new ] || [ -e tail.old ]; then
  dropped=$(cat dropped 2> /dev/null || echo 0)
  {
    [ "$dropped" = 0 ] || printf "\n[gpuops: %s bytes were left out here]\n" "$dropped"
    cat tail.old tail.new 2> /dev/null
  } > log.new
  mv log.new "log.$head_parts"
  rm -f tail.old tail.new
fi
if [ "$reader_code" = 3 ]; then
  # in place of the last part, whose room `ended` needs
  last=-1
  for file in log.*; do [ ! -e "$file" ] || last=$((last + 1)); done
  printf "[gpuops: the guest could not write the rest down: is its disk full?]\n" > "log.$last"
fi
echo "$code $(cat began) $(date +%s)" > ended.new && mv ended.new ended
rm -f pipe
