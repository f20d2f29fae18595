//! How the programs answer to wrong arguments and to a machine without a driver.

use std::process::{Command, Output};

const PROGRAMS: [(&str, &str); 5] = [
    ("sweep", env!("CARGO_BIN_EXE_sweep")),
    ("train", env!("CARGO_BIN_EXE_train")),
    ("gemm", env!("CARGO_BIN_EXE_gemm")),
    ("gather", env!("CARGO_BIN_EXE_gather")),
    ("fits", env!("CARGO_BIN_EXE_fits")),
];

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .output()
        .expect("program starts")
}

#[test]
fn wrong_arguments_are_named_and_end_with_2() {
    let wrong: [(&[&str], &str); 7] = [
        (&["--bytes", "7 apples"], "7 apples"),
        (&["--bytes", "1MiB"], "--bytes 1.0 MiB is too small"),
        (&["--bytes", "9000000GiB"], "--bytes"),
        (&["--iterations", "0"], "--iterations"),
        (&["--iterations", "-1"], "-1"),
        (&["--seed", "x"], "--seed"),
        (&["--colour"], "--colour"),
    ];
    for (name, program) in PROGRAMS {
        for (arguments, message) in wrong {
            let output = run(program, arguments);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(2),
                "{name} {arguments:?}: {stderr}"
            );
            assert!(stderr.contains(message), "{name} {arguments:?}: {stderr}");
            assert!(output.stdout.is_empty(), "{name} {arguments:?}");
        }
    }
    let output = run(env!("CARGO_BIN_EXE_train"), &["--allocator", "none"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn help_explains_every_option() {
    for (name, program) in PROGRAMS {
        let output = run(program, &["--help"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}");
        for option in ["--bytes", "--iterations", "--seed", "--json"] {
            assert!(text.contains(option), "{name}: {option}");
        }
    }
}

#[test]
fn without_a_driver_the_programs_say_so_and_end_with_1() {
    // SAFETY: opens the driver library, if there is one, and closes it again.
    if unsafe { cudarc::driver::sys::is_culib_present() } {
        eprintln!("there is a CUDA driver here, so its absence cannot be shown");
        return;
    }
    for (name, program) in PROGRAMS {
        let output = run(program, &["--json"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {stderr}");
        assert!(
            stderr.contains("libcuda.so.1 was not found"),
            "{name}: {stderr}"
        );
        assert!(output.stdout.is_empty(), "{name}");
    }
}
