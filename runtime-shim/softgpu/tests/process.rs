//! The life of the driver in a process: before `cuInit`, fork, exit, wrong configuration.
//!
//! Each body runs in a child process of its own, for it ends or spoils the process.

mod driver;

use std::process::{Command, Output};

use driver::*;

const CHILD: &str = "SOFTGPU_TEST_CHILD";

/// Runs the test's body in a child process. None: this is the child.
fn in_child(test: &str, variables: &[(&str, &str)]) -> Option<Output> {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        return None;
    }
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        .env("OVERSUB_SOFTGPU_MEMORY", "64MiB")
        .envs(variables.iter().copied())
        .output()
        .expect("the child runs");
    Some(output)
}

#[track_caller]
fn passed(output: &Output) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {text}", output.status);
}

#[test]
fn nothing_but_initialisation_works_before_it() {
    if let Some(output) = in_child("nothing_but_initialisation_works_before_it", &[]) {
        return passed(&output);
    }
    let (mut count, mut address) = (0, 0);
    // SAFETY: valid places for the results.
    unsafe {
        assert_eq!(cuDeviceGetCount(&mut count), CuResult::NOT_INITIALIZED);
        assert_eq!(cuMemAlloc_v2(&mut address, 1), CuResult::NOT_INITIALIZED);
        assert_eq!(cuCtxSynchronize(), CuResult::NOT_INITIALIZED);
        ok(cuDriverGetVersion(&mut count));
        assert_eq!(cuInit(1), CuResult::INVALID_VALUE);
        ok(cuInit(0));
        ok(cuInit(0));
        ok(cuDeviceGetCount(&mut count));
    }
}

#[test]
fn a_wrong_configuration_is_refused_with_a_line_that_says_why() {
    let name = "a_wrong_configuration_is_refused_with_a_line_that_says_why";
    if let Some(output) = in_child(name, &[("OVERSUB_SOFTGPU_LINK_IN", "very fast")]) {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            text.contains("OVERSUB_SOFTGPU_LINK_IN=\"very fast\""),
            "{text}"
        );
        return passed(&output);
    }
    // SAFETY: no pointers.
    unsafe {
        assert_eq!(cuInit(0), CuResult::INVALID_VALUE);
        assert_eq!(cuCtxSynchronize(), CuResult::NOT_INITIALIZED);
    }
}

#[test]
fn the_counters_are_written_at_exit_and_calls_behind_it_are_refused() {
    let name = "the_counters_are_written_at_exit_and_calls_behind_it_are_refused";
    let path = std::env::temp_dir().join(format!("softgpu-stats-{}.json", std::process::id()));
    let variables = [("OVERSUB_SOFTGPU_STATS", path.to_str().expect("text"))];
    if let Some(output) = in_child(name, &variables) {
        passed(&output);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("behind exit: 4"), "{text}");
        let stats = std::fs::read_to_string(&path).expect("written");
        std::fs::remove_file(&path).expect("removed");
        for part in [
            "{\"device_bytes\":67108864,",
            "\"kernels\":2,",
            "\"cuArrayDestroy\":1",
        ] {
            assert!(stats.contains(part), "{part} in {stats}");
        }
        return;
    }
    extern "C" fn last() {
        // SAFETY: no pointers.
        println!("behind exit: {}", unsafe { cuCtxSynchronize() }.0);
    }
    // Registered before the driver's, so it runs behind it.
    // SAFETY: a function of this program.
    unsafe { libc::atexit(last) };
    driver::init();
    let context = Context::here();
    let memory = context.device_memory(4096);
    ok(context.fill(StreamHandle(0), memory, 16, 1));
    ok(context.fill(StreamHandle(0), memory, 16, 2));
    // SAFETY: no argument is looked at.
    unsafe {
        ok(cuCtxSynchronize());
        let _ = oversub_softgpu::api::unsupported::cuArrayDestroy();
    }
    std::mem::forget(context);
    std::process::exit(0);
}

#[test]
fn the_driver_leaves_the_program_its_signals() {
    if let Some(output) = in_child("the_driver_leaves_the_program_its_signals", &[]) {
        return passed(&output);
    }
    driver::init();
    // A thread gives itself its name when it first runs.
    let mut threads = 0;
    while threads < 5 {
        threads = 0;
        for task in std::fs::read_dir("/proc/self/task").expect("threads") {
            let status = task.expect("a thread").path().join("status");
            let status = std::fs::read_to_string(status).expect("its status");
            let line = |key: &str| {
                let line = status.lines().find_map(|l| l.strip_prefix(key));
                line.expect("as the kernel writes it").trim().to_owned()
            };
            if !line("Name:").starts_with("softgpu-") {
                continue;
            }
            threads += 1;
            let blocked = u64::from_str_radix(&line("SigBlk:"), 16).expect("a number");
            let bit = |signal: i32| (blocked >> (signal - 1)) & 1;
            assert_eq!(
                (bit(libc::SIGINT), bit(libc::SIGCHLD), bit(libc::SIGBUS)),
                (1, 1, 0)
            );
        }
    }
}

#[test]
fn a_forked_child_is_told_that_it_has_no_driver_and_the_parent_goes_on() {
    let name = "a_forked_child_is_told_that_it_has_no_driver_and_the_parent_goes_on";
    if let Some(output) = in_child(name, &[]) {
        return passed(&output);
    }
    driver::init();
    let context = Context::here();
    let memory = context.managed(4096);
    // SAFETY: the child only makes calls that are refused, and leaves without handlers.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut count = 0;
            let refused = cuDeviceGetCount(&mut count) == CuResult::NOT_INITIALIZED
                && cuInit(0) == CuResult::NOT_INITIALIZED
                && cuMemFree_v2(memory) == CuResult::NOT_INITIALIZED;
            libc::_exit(if refused { 0 } else { 1 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0);
        ok(cuMemsetD8_v2(memory, 3, 4096));
        ok(cuCtxSynchronize());
        assert_eq!(*(memory as *const u8), 3);
    }
}

#[test]
fn a_prefetch_that_moves_nothing_does_not_wait_for_a_busy_link() {
    let name = "a_prefetch_that_moves_nothing_does_not_wait_for_a_busy_link";
    // 8 MiB at 1 MB/s: the link is busy for as long as this test wants.
    if let Some(output) = in_child(name, &[("OVERSUB_SOFTGPU_LINK_IN", "1MB/s")]) {
        return passed(&output);
    }
    // SAFETY: no pointers.
    ok(unsafe { cuInit(0) });
    let context = Context::here();
    let (busy, free) = (
        context.stream(STREAM_NON_BLOCKING),
        context.stream(STREAM_NON_BLOCKING),
    );
    let (device, managed) = (context.device_memory(8 << 20), context.managed(8 << 20));
    let place = Location {
        kind: LocationType::DEVICE,
        id: 0,
    };
    let mut source = std::ptr::null_mut();
    // SAFETY: ranges inside their allocations.
    unsafe {
        ok(cuMemHostAlloc(&mut source, 8 << 20, 0));
        ok(cuMemcpyHtoDAsync_v2(device, source, 8 << 20, busy));
        // Nothing is populated yet, so there is nothing to move.
        ok(cuMemPrefetchAsync_v2(managed, 8 << 20, place, 0, free));
        let (mut address, mut bytes) = (managed, 4usize << 20);
        ok(cuMemDiscardBatchAsync(&mut address, &mut bytes, 1, 0, free));
        ok(cuStreamSynchronize(free));
        assert_eq!(cuStreamQuery(busy), CuResult::NOT_READY);
    }
    // The copy is not waited for: exit takes the process down, whatever runs.
    std::process::exit(0);
}
