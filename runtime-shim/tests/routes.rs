//! Every way in which a program finds the driver leads to the shim, and nothing else does.

mod common;

use common::{Program, command, fixtures};

const MIB: u64 = 1 << 20;

fn is_managed_by(route: &str) {
    let mut program = Program::start(route, &[]);
    program.number(&format!("alloc {}", 8 * MIB));
    assert_eq!(program.count("cuMemAllocManaged"), 1, "{route}");
    assert_eq!(program.count("cuMemAlloc_v2"), 0, "{route}");
    assert_eq!(program.ask("launch 0"), "0");
    program.quit();
}

#[test]
fn a_program_that_links_the_driver_is_covered() {
    is_managed_by("direct");
}

#[test]
fn a_program_that_loads_the_driver_privately_and_asks_dlsym_is_covered() {
    is_managed_by("dlsym");
}

#[test]
fn a_program_that_asks_the_first_cu_get_proc_address_is_covered() {
    is_managed_by("proc1");
}

#[test]
fn a_program_that_asks_the_second_cu_get_proc_address_is_covered() {
    is_managed_by("proc2");
}

#[test]
fn a_driver_that_finds_our_own_exports_does_not_make_us_call_ourselves() {
    let mut program = Program::start("proc2", &[("FAKE_GLOBAL_SCOPE", "1")]);
    program.number(&format!("alloc {}", 8 * MIB));
    assert_eq!(program.count("cuMemAllocManaged"), 1);
    assert_eq!(program.ask("launch 0"), "0");
    assert_eq!(program.count("cuLaunchKernel"), 1);
    program.quit();
}

#[test]
fn a_program_with_per_thread_default_streams_keeps_them() {
    let mut program = Program::start("thread", &[]);
    assert_eq!(program.ask("launch 0 3"), "0");
    assert_eq!(program.count("cuLaunchKernel_ptsz"), 3);
    assert_eq!(program.count("cuLaunchKernel"), 0);
    program.quit();
}

#[test]
fn what_the_shim_does_not_know_passes_untouched() {
    for route in ["dlsym", "proc1", "proc2"] {
        let mut program = Program::start(route, &[]);
        assert_eq!(program.ask("unheard"), "1 42", "{route}");
        assert_eq!(program.ask("missing"), "1", "{route}");
        program.quit();
    }
}

#[test]
fn cu_get_proc_address_gives_itself_as_the_program_already_has_it() {
    let mut program = Program::start("proc2", &[]);
    assert_eq!(program.ask("itself"), "0 1");
    program.quit();
}

#[test]
fn a_library_that_asks_for_the_next_definition_gets_the_next_one() {
    let output = command(&fixtures().join("asks_next")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "first last found\n"
    );
}

#[test]
fn a_program_without_cuda_runs_as_ever() {
    let output = command("/bin/sh".as_ref())
        .args(["-c", "echo here; exit 7"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"here\n");
}
