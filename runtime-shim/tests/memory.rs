//! What memory a program gets, and what it is told about it.

mod common;

use common::Program;

const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: &str = "2 0";

#[test]
fn small_memory_stays_the_devices_and_large_memory_is_managed_in_whole_blocks() {
    let mut program = Program::start("dlsym", &[]);
    program.number(&format!("alloc {}", 2 * MIB - 1));
    assert_eq!(
        (
            program.count("cuMemAlloc_v2"),
            program.count("cuMemAllocManaged")
        ),
        (1, 0)
    );
    let address = program.number(&format!("alloc {}", 2 * MIB + 1));
    assert_eq!(
        (
            program.count("cuMemAlloc_v2"),
            program.count("cuMemAllocManaged")
        ),
        (1, 1)
    );
    assert_eq!(address % (2 * MIB), 0);
    assert_eq!(program.ask(&format!("free {address}")), "0");
    assert_eq!(program.count("cuMemFree_v2"), 1);
    program.quit();
}

#[test]
fn managed_memory_is_prefetched_to_the_device_while_it_fits() {
    let mut program = Program::start("dlsym", &[]);
    let address = program.number(&format!("alloc {}", 100 * MIB));
    assert_eq!(program.ask("last prefetch"), address.to_string());
    assert_eq!(program.ask("last prefetch-kind"), "1");
    program.number(&format!("alloc {}", 200 * MIB));
    assert_eq!(
        program.ask("last prefetch"),
        address.to_string(),
        "beyond the device"
    );
    program.quit();
}

#[test]
fn memory_within_a_budget_stays_on_the_host_but_for_what_fits() {
    let budget = (64 * MIB).to_string();
    let mut program = Program::start("dlsym", &[("OVERSUB_MEMORY_BUDGET", &budget)]);
    let first = program.number(&format!("alloc {}", 60 * MIB));
    program.number(&format!("alloc {}", 60 * MIB));
    let third = program.number(&format!("alloc {}", 60 * MIB));
    // Each prefers the host, and is mapped for the device.
    assert_eq!(program.count("cuMemAdvise_v2"), 6);
    assert_eq!(program.ask("last advice"), "325132513251");
    // All of the first, 4 MiB of the second.
    assert_eq!(program.count("cuMemPrefetchAsync_v2"), 2);
    assert_eq!(program.ask("last prefetch-kind"), "1");
    assert_eq!(program.ask("last prefetch-bytes"), (4 * MIB).to_string());
    // The next one finds the room of the first, once that is gone for good.
    assert_eq!(program.ask(&format!("free {first}")), "0");
    assert_eq!(program.ask(&format!("free {third}")), "0");
    program.number(&format!("alloc {}", 2 * MIB));
    assert_eq!(program.count("cuMemPrefetchAsync_v2"), 3);
    program.quit();
}

#[test]
fn under_demand_what_exceeds_the_budget_begins_on_the_host() {
    let budget = (64 * MIB).to_string();
    let environment = [
        ("OVERSUB_MEMORY_BUDGET", budget.as_str()),
        ("OVERSUB_POLICY", "demand"),
    ];
    let mut program = Program::start("dlsym", &environment);
    program.number(&format!("alloc {}", 60 * MIB));
    assert_eq!(program.ask("last prefetch-kind"), "1");
    let second = program.number(&format!("alloc {}", 60 * MIB));
    assert_eq!(program.ask("last prefetch"), second.to_string());
    assert_eq!(program.ask("last prefetch-kind"), "2");
    assert_eq!(program.count("cuMemAdvise_v2"), 0);
    program.quit();
}

#[test]
fn the_driver_policy_means_managed_memory_and_nothing_else() {
    let mut program = Program::start("dlsym", &[("OVERSUB_POLICY", "driver")]);
    program.number(&format!("alloc {}", 8 * MIB));
    program.number(&format!("async {} 0", 8 * MIB));
    assert_eq!(program.count("cuMemAllocManaged"), 2);
    assert_eq!(program.count("cuMemPrefetchAsync_v2"), 0);
    program.quit();
}

#[test]
fn disabled_it_does_nothing_at_all() {
    let mut program = Program::start("dlsym", &[("OVERSUB_DISABLE", "1")]);
    program.number(&format!("alloc {}", 8 * MIB));
    program.number(&format!("async {} 0", 8 * MIB));
    assert_eq!(program.count("cuMemAllocManaged"), 0);
    assert_eq!(program.count("cuMemAllocAsync"), 1);
    program.quit();
}

#[test]
fn a_device_that_cannot_page_is_left_to_the_driver() {
    let mut program = Program::start("dlsym", &[("FAKE_NO_PAGING", "1")]);
    program.number(&format!("alloc {}", 8 * MIB));
    let part = program.number(&format!("async {} 0", 8 * MIB));
    assert_eq!(program.count("cuMemAllocManaged"), 0);
    assert_eq!(program.ask(&format!("afree {part} 0")), "0");
    assert_eq!(program.count("cuMemFreeAsync"), 1);
    program.quit();
}

#[test]
fn without_a_ratio_the_program_is_told_the_truth() {
    let mut program = Program::start("dlsym", &[]);
    assert_eq!(program.numbers("info"), [240 * MIB, 256 * MIB]);
    assert_eq!(program.number("total"), 256 * MIB);
    assert_eq!(program.number("info-null"), 256 * MIB);
    program.quit();
}

#[test]
fn a_ratio_limits_and_says_so_everywhere_alike() {
    let mut program = Program::start("dlsym", &[("OVERSUB_RATIO_LIMIT", "1.5")]);
    assert_eq!(program.number("total"), 384 * MIB);
    assert_eq!(program.numbers("info"), [(384 - 16) * MIB, 384 * MIB]);
    let address = program.number(&format!("alloc {}", 300 * MIB));
    assert_eq!(program.numbers("info"), [(384 - 16 - 300) * MIB, 384 * MIB]);
    assert_eq!(program.ask(&format!("alloc {}", 100 * MIB)), OUT_OF_MEMORY);
    assert_eq!(
        program.ask(&format!("async {} 0", 100 * MIB)),
        OUT_OF_MEMORY
    );
    assert_eq!(program.ask(&format!("free {address}")), "0");
    program.number(&format!("alloc {}", 100 * MIB));
    program.quit();
}

#[test]
fn a_managed_pointer_answers_as_device_memory() {
    let mut program = Program::start("dlsym", &[]);
    let address = program.number(&format!("alloc {}", 5 * MIB));
    let inside = address + 3 * MIB;
    assert_eq!(
        program.number(&format!("attribute {inside} 2")),
        2,
        "memory type device"
    );
    assert_eq!(
        program.number(&format!("attribute {inside} 8")),
        0,
        "not managed"
    );
    assert_eq!(
        program.number(&format!("attribute {inside} 9")),
        0,
        "on device 0"
    );
    assert_eq!(program.number(&format!("attribute {inside} 11")), address);
    assert_eq!(program.number(&format!("attribute {inside} 12")), 5 * MIB);
    assert!(
        program
            .ask(&format!("attribute {inside} 4"))
            .starts_with("1 "),
        "no host pointer"
    );
    assert_eq!(
        program.numbers(&format!("range {inside}")),
        [address, 5 * MIB]
    );
    assert_eq!(program.ask(&format!("ipc {address}")), "1");
    program.quit();
}

#[test]
fn a_part_of_the_pool_answers_with_its_own_range() {
    let mut program = Program::start("dlsym", &[]);
    program.number(&format!("async {} 0", 4 * MIB));
    let part = program.number(&format!("async {} 0", 4 * MIB));
    assert_eq!(
        program.numbers(&format!("range {}", part + MIB)),
        [part, 4 * MIB]
    );
    assert_eq!(program.number(&format!("attribute {part} 17")) % 8, 0);
    assert_eq!(program.number(&format!("attribute {part} 8")), 0);
    program.quit();
}

#[test]
fn managed_memory_of_the_programs_own_stays_managed() {
    let mut program = Program::start("dlsym", &[]);
    let address = program.number(&format!("managed {}", 4 * MIB));
    assert_eq!(program.number(&format!("attribute {address} 8")), 1);
    assert_eq!(program.ask(&format!("free {address}")), "0");
    program.quit();
}

#[test]
fn stream_ordered_memory_comes_from_the_pool_and_is_reused_in_its_stream() {
    let mut program = Program::start("dlsym", &[]);
    let stream = program.number("stream");
    let first = program.number(&format!("async {} {stream}", 16 * MIB));
    assert_eq!(program.ask(&format!("afree {first} {stream}")), "0");
    assert_eq!(
        program.number(&format!("async {} {stream}", 16 * MIB)),
        first
    );
    assert_eq!(program.count("cuMemAllocManaged"), 1);
    assert_eq!(program.count("cuStreamWaitEvent"), 0);
    assert_eq!(program.count("cuMemAllocAsync"), 0);
    program.quit();
}

#[test]
fn another_stream_gets_it_only_after_a_wait() {
    let mut program = Program::start("dlsym", &[]);
    let (one, other) = (program.number("stream"), program.number("stream"));
    let first = program.number(&format!("async {} {one}", 32 * MIB));
    assert_eq!(program.ask(&format!("afree {first} {one}")), "0");
    assert_eq!(
        program.number(&format!("async {} {other}", 32 * MIB)),
        first
    );
    assert_eq!(program.count("cuStreamWaitEvent"), 1);
    program.quit();
}

#[test]
fn memory_freed_in_a_stream_that_is_gone_is_still_ordered() {
    let mut program = Program::start("dlsym", &[]);
    let (one, other) = (program.number("stream"), program.number("stream"));
    let first = program.number(&format!("async {} {one}", 32 * MIB));
    assert_eq!(program.ask(&format!("afree {first} {one}")), "0");
    assert_eq!(program.ask(&format!("destroy {one}")), "0");
    let waits = program.count("cuStreamWaitEvent");
    assert_eq!(waits, 1, "our own stream waits for the one that goes");
    assert_eq!(
        program.number(&format!("async {} {other}", 32 * MIB)),
        first
    );
    assert_eq!(program.count("cuStreamWaitEvent"), waits + 1);
    program.quit();
}

#[test]
fn pool_memory_may_be_freed_without_a_stream_and_other_memory_with_one() {
    let mut program = Program::start("dlsym", &[]);
    let part = program.number(&format!("async {} 0", 4 * MIB));
    assert_eq!(program.ask(&format!("free {part}")), "0");
    assert_eq!(program.count("cuCtxSynchronize"), 1);
    assert_eq!(program.ask(&format!("free {part}")), "1", "twice");
    let whole = program.number(&format!("alloc {}", 4 * MIB));
    assert_eq!(program.ask(&format!("afree {whole} 0")), "0");
    assert_eq!(program.count("cuStreamSynchronize"), 1);
    assert_eq!(program.count("cuMemFree_v2"), 1);
    program.quit();
}

#[test]
fn memory_allocated_in_a_capture_belongs_to_the_graph() {
    let mut program = Program::start("dlsym", &[]);
    let stream = program.number("stream");
    assert_eq!(program.ask(&format!("capture {stream}")), "0");
    program.number(&format!("async {} {stream}", 4 * MIB));
    assert_eq!(program.count("cuMemAllocAsync"), 1);
    assert_eq!(program.ask(&format!("captured {stream}")), "0");
    program.number(&format!("async {} {stream}", 4 * MIB));
    assert_eq!(program.count("cuMemAllocAsync"), 1);
    program.quit();
}

#[test]
fn the_device_is_said_to_have_pools_because_the_shim_is_one() {
    let mut program = Program::start("dlsym", &[]);
    assert_eq!(program.number("device 115"), 1);
    assert_eq!(program.number("device 116"), 0);
    program.quit();
}

#[test]
fn a_destroyed_context_takes_its_memory_with_it() {
    let mut program = Program::start("dlsym", &[("OVERSUB_RATIO_LIMIT", "1.0")]);
    program.number(&format!("alloc {}", 200 * MIB));
    assert_eq!(program.ask(&format!("alloc {}", 200 * MIB)), OUT_OF_MEMORY);
    assert_eq!(program.ask("destroy-context"), "0");
    assert_eq!(program.ask("context"), "0");
    program.number(&format!("alloc {}", 200 * MIB));
    program.quit();
}

#[test]
fn a_forked_child_is_left_alone_and_the_parent_goes_on() {
    let mut program = Program::start("dlsym", &[]);
    program.number(&format!("alloc {}", 8 * MIB));
    assert_eq!(program.ask("fork"), "0");
    program.number(&format!("alloc {}", 8 * MIB));
    assert_eq!(program.count("cuMemAllocManaged"), 2);
    program.quit();
}
