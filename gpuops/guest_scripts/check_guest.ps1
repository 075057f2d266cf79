# Prints what a Windows guest has for GPU programs, in sections after a line `@@ NAME`. It changes nothing.
# It calls nvidia-smi.exe, nvcc.exe, w32tm and python.
param([string[]]$Frameworks = @())
[Console]::OutputEncoding = [Text.Encoding]::UTF8
$ProgressPreference = 'SilentlyContinue'
'@@ begin windows'
'@@ clock'
[DateTimeOffset]::UtcNow.ToUnixTimeSeconds()
'@@ synchronized'
w32tm /query /status 2>$null | select -First 1
'@@ installed'
(Get-CimInstance Win32_VideoController | ?{$_.Name -like 'NVIDIA*'} | select -First 1).DriverVersion
$smi = @("$env:SystemRoot\System32\nvidia-smi.exe", "$env:ProgramFiles\NVIDIA Corporation\NVSMI\nvidia-smi.exe") |
  ?{Test-Path $_} | select -First 1
if ($smi) {'@@ smi'; & $smi -q -x 2>&1} else {'@@ no-smi'}
'@@ toolkit'
if ($env:CUDA_PATH) {& $env:CUDA_PATH\bin\nvcc.exe --version 2>$null}
'@@ rdma'
ConvertTo-Json -Compress @(Get-NetAdapterRdma -ErrorAction SilentlyContinue | ?{$_.Enabled} |
  %{@{ifname = $_.Name; state = '' + (Get-NetAdapter -Name $_.Name).Status}})
if ($Frameworks) {
  if (Get-Command python -ErrorAction SilentlyContinue) {
    '@@ frameworks'
    foreach ($name in $Frameworks) {
      $name + ' ' + (& python -c 'import sys,importlib.metadata as m;print(m.version(sys.argv[1]))' $name 2>$null)
    }
  } else {'@@ no-python'}
}
'@@ end'
