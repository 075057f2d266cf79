# shellcheck shell=sh
# Prints what a Linux guest has for GPU programs, in sections after a line `@@ NAME`: check_guest FRAMEWORK...
# It changes nothing. It calls nvidia-smi -q -x (NVIDIA nvidia-smi manual), modinfo, nvcc, ldconfig, rdma link
# (rdma-link(8)) and ibv_devinfo, timedatectl or chronyc, and python3 for the versions of frameworks.

LC_ALL=C
PATH="$PATH:/usr/sbin:/sbin:/usr/local/bin:/usr/local/cuda/bin"
export LC_ALL PATH

has() {
  command -v "$1" > /dev/null
}

echo "@@ begin linux"
echo "@@ clock"
date -u +%s

echo "@@ synchronized"
# with a chrony without rtcsync timedatectl says no, although the clock is synchronized (chrony.conf(5))
synchronized=$(timedatectl show -p NTPSynchronized --value 2> /dev/null)
if [ "$synchronized" = yes ] || ! chronyc -n tracking 2> /dev/null | grep "^Leap status"; then echo "$synchronized"; fi

echo "@@ installed"
modinfo -F version nvidia 2> /dev/null | head -n 1
if has nvidia-smi; then
  echo "@@ smi"
  nvidia-smi -q -x 2>&1
else
  echo "@@ no-smi"
fi

echo "@@ toolkit"
nvcc --version 2> /dev/null || cat /usr/local/cuda/version.json 2> /dev/null
echo "@@ runtimes"
ldconfig -p 2> /dev/null | grep -o "libcudart\.so\.[0-9.]*" | sort -u | head -n 20

# an rdma that is too old for -j, or may not ask the kernel, prints nothing
rdma=$(rdma -j link show 2> /dev/null)
if [ -n "$rdma" ]; then
  echo "@@ rdma"
  echo "$rdma"
elif has ibv_devinfo; then
  echo "@@ ibv"
  ibv_devinfo 2> /dev/null
fi

if [ $# -gt 0 ]; then
  if has python3; then
    echo "@@ frameworks"
    for name; do
      echo "$name $(python3 -c "import sys,importlib.metadata as m;print(m.version(sys.argv[1]))" "$name" 2> /dev/null)"
    done
  else
    echo "@@ no-python"
  fi
fi
echo "@@ end"
