//! The committed PTX is what its source gives, and nothing in it may be fused.

use std::process::Command;

use oversub_workloads::device::PTX;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");

#[test]
fn building_the_source_again_gives_the_committed_ptx() {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| String::from("clang-19"));
    if Command::new(&clang).arg("--version").output().is_err() {
        eprintln!("{clang} is not installed, so the PTX cannot be built again");
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let output = folder.path().join("kernels.ptx");
    let built = Command::new(format!("{FOLDER}/build"))
        .arg(&output)
        .output()
        .expect("build runs");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let again = std::fs::read_to_string(output).expect("PTX was written");
    assert!(
        again == PTX,
        "kernels.ptx is not what kernels.cu gives: run kernels/build"
    );
}

#[test]
fn every_float_operation_rounds_by_itself_to_nearest() {
    let mut seen = 0;
    for line in PTX.lines() {
        let operation = line.split_whitespace().next().unwrap_or_default();
        if operation.contains(".f32") {
            assert!(
                !operation.starts_with("fma") && !operation.starts_with("mad"),
                "{line}"
            );
            let arithmetic = ["add", "sub", "mul", "div", "sqrt"];
            if arithmetic.iter().any(|name| operation.starts_with(name)) {
                assert!(operation.ends_with(".rn.f32"), "{line}");
                seen += 1;
            }
        }
        assert!(
            !line.contains(".ftz") && !line.contains(".approx"),
            "{line}"
        );
    }
    assert!(seen > 30, "{seen} operations");
}

#[test]
fn old_drivers_and_devices_may_load_it() {
    assert!(PTX.contains(".version 6.0\n"));
    assert!(PTX.contains(".target sm_70\n"));
}
