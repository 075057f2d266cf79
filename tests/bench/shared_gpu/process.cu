// One process of those that share a GPU: it computes on the GPU for a while, does something else for a while, and again.
//
// A burst is a fixed amount of work, not a fixed time: beside others it takes longer. It is handed to the GPU as kernels
// of a given length, one after another, and waited for without keeping a CPU busy. `measure.py` starts it, and asks by a
// line on stdin:
//   rate KIND                                   -> how many rounds of that kernel the GPU does in a second, alone
//   run BEGIN WARM WINDOW BURST THINK SHAPE KERNEL KIND RATE SEED
//     -> of the cycles that ended in the window: how many, what they and their bursts take as planned, what they took,
//        and what their bursts took; in seconds
// BEGIN is a time of CLOCK_MONOTONIC. SHAPE: exponential = bursts and pauses are drawn so, regular = all alike.
// KIND: compute = every multiprocessor is full; quarter = a quarter of them has work; memory = reads a buffer larger
// than the caches.
//
// nvcc -O2 -arch=native -o process process.cu; without a GPU: g++ -x c++ -O2 -DNO_GPU -o process process.cu, in which
// a file that is locked for a millisecond at a time stands for the GPU.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <sys/prctl.h>

static double now_s() {
    timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static void sleep_until(double at_s) {
    timespec at = {(time_t)at_s, (long)((at_s - std::floor(at_s)) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) != 0) {
    }
}

#ifdef NO_GPU
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

static int gpu_file = -1;

static void open_gpu() {
    gpu_file = open("/tmp/shared_gpu.lock", O_CREAT | O_RDWR, 0600);
    if (gpu_file < 0) {
        perror("open");
        exit(1);
    }
}

static double rounds_per_s(const std::string &) { return 1e6; }

// A round is a microsecond.
static void burst(const std::string &, long rounds, long rounds_of_kernel) {
    (void)rounds_of_kernel;
    while (rounds > 0) {
        long slice = rounds < 1000 ? rounds : 1000;
        flock(gpu_file, LOCK_EX);
        sleep_until(now_s() + slice * 1e-6);
        flock(gpu_file, LOCK_UN);
        rounds -= slice;
    }
}
#else
static void must(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
        exit(1);
    }
}

static const size_t BUFFER_FLOAT4 = (size_t)16 << 20;  // 256 MiB, five times the cache of an H100
static float4 *buffer = nullptr;
static float *sink = nullptr;
static int multiprocessors = 0;
static const int THREADS = 256;

__global__ void compute(long rounds, float *out) {
    float a = threadIdx.x * 1e-3f, b = 1.0f, c = 0.5f, d = 0.25f;
    for (long at = 0; at < rounds; at++) {
#pragma unroll
        for (int part = 0; part < 8; part++) {
            a = fmaf(a, 0.999f, 0.001f);
            b = fmaf(b, 0.998f, 0.002f);
            c = fmaf(c, 0.997f, 0.003f);
            d = fmaf(d, 0.996f, 0.004f);
        }
    }
    if (a + b + c + d == 12345.0f) out[0] = a;  // never: the compiler must not leave the loop out
}

__global__ void memory(long rounds, const float4 *in, size_t count, float *out) {
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x, step = (size_t)gridDim.x * blockDim.x;
    float sum = 0.0f;
    for (long round = 0; round < rounds; round++) {
        float4 value = in[at % count];
        sum += value.x + value.y + value.z + value.w;
        at += step;
    }
    if (sum == 12345.0f) out[0] = sum;
}

static void launch(const std::string &kind, long rounds) {
    if (kind == "memory")
        memory<<<multiprocessors * 8, THREADS>>>(rounds, buffer, BUFFER_FLOAT4, sink);
    else if (kind == "quarter")
        compute<<<multiprocessors / 4, THREADS>>>(rounds, sink);
    else
        compute<<<multiprocessors * 8, THREADS>>>(rounds, sink);
    must(cudaGetLastError());
}

static void open_gpu() {
    must(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    cudaDeviceProp properties;
    must(cudaGetDeviceProperties(&properties, 0));
    multiprocessors = properties.multiProcessorCount;
    must(cudaMalloc(&buffer, BUFFER_FLOAT4 * sizeof(float4)));
    must(cudaMemset(buffer, 1, BUFFER_FLOAT4 * sizeof(float4)));
    must(cudaMalloc(&sink, sizeof(float)));
    for (const char *kind : {"compute", "quarter", "memory"}) launch(kind, 1000);  // loads the kernels
    must(cudaDeviceSynchronize());
}

static double rounds_per_s(const std::string &kind) {
    cudaEvent_t begin, end;
    must(cudaEventCreate(&begin));
    must(cudaEventCreate(&end));
    long rounds = 1000;
    float took_ms = 0.0f;
    while (true) {
        must(cudaEventRecord(begin));
        launch(kind, rounds);
        must(cudaEventRecord(end));
        must(cudaEventSynchronize(end));
        must(cudaEventElapsedTime(&took_ms, begin, end));
        if (took_ms > 50.0f) return rounds / (took_ms * 1e-3);
        rounds *= 2;
    }
}

static void burst(const std::string &kind, long rounds, long rounds_of_kernel) {
    while (rounds > 0) {
        long part = rounds < rounds_of_kernel ? rounds : rounds_of_kernel;
        launch(kind, part);
        rounds -= part;
    }
    must(cudaDeviceSynchronize());
}
#endif

int main() {
    prctl(PR_SET_TIMERSLACK, 1);
    open_gpu();
    printf("ready\n");
    fflush(stdout);
    char line[512];
    while (fgets(line, sizeof line, stdin)) {
        char kind[32], shape[32];
        double begin_s, warm_s, window_s, burst_s, think_s, kernel_s, rate;
        unsigned seed;
        if (sscanf(line, "rate %31s", kind) == 1) {
            printf("%.9g\n", rounds_per_s(kind));
        } else if (sscanf(line, "run %lf %lf %lf %lf %lf %31s %lf %31s %lf %u", &begin_s, &warm_s, &window_s, &burst_s,
                          &think_s, shape, &kernel_s, kind, &rate, &seed) == 10) {
            bool regular = strcmp(shape, "regular") == 0;
            std::mt19937_64 random(seed);
            std::exponential_distribution<double> drawn(1.0);
            std::uniform_real_distribution<double> phase(0.0, 1.0);
            double from_s = begin_s + warm_s, until_s = from_s + window_s;
            double alone_s = 0.0, work_alone_s = 0.0, spent_s = 0.0, on_gpu_s = 0.0;
            long cycles = 0;
            sleep_until(begin_s + (burst_s + think_s) * phase(random));
            while (true) {
                double pause_s = think_s * (regular ? 1.0 : drawn(random));
                double work_s = burst_s * (regular ? 1.0 : drawn(random));
                double cycle_s = now_s();
                sleep_until(cycle_s + pause_s);
                double asked_s = now_s();
                burst(kind, std::lround(work_s * rate) + 1, std::lround(kernel_s * rate) + 1);
                double end_s = now_s();
                if (end_s >= until_s) break;
                if (end_s >= from_s) {  // a cycle that ends in the window counts whole: so long ones count as often as short
                    cycles++;
                    alone_s += pause_s + work_s;
                    work_alone_s += work_s;
                    spent_s += end_s - cycle_s;
                    on_gpu_s += end_s - asked_s;
                }
            }
            printf("%ld %.6f %.6f %.6f %.6f\n", cycles, alone_s, work_alone_s, spent_s, on_gpu_s);
        } else {
            fprintf(stderr, "not understood: %s", line);
            return 1;
        }
        fflush(stdout);
    }
    return 0;
}
