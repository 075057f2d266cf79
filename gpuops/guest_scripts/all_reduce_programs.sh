# shellcheck shell=sh
# Prints which programs that measure an all-reduce this guest has.

for name in all_reduce_perf osu_allreduce; do
  command -v "$name" > /dev/null && echo "has $name"
done
python3 -c "import mpi4py" 2> /dev/null && echo "has mpi4py"
true
