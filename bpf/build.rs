//! Compiles the BPF programs with clang and makes their skeletons.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};
use libbpf_cargo::SkeletonBuilder;

const PROGRAMS: [&str; 3] = ["softgpu", "spaces", "uvm"];

fn main() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("OUT_DIR is not set")?);
    let clang = clang();
    let mut args: Vec<OsString> = ["-I", "include", "-Wall", "-Werror", "-mcpu=v3"]
        .map(OsString::from)
        .to_vec();
    // clang does not look here for the bpf target, but <asm/types.h> is here on Debian.
    let arch = env::var("CARGO_CFG_TARGET_ARCH")?;
    let multiarch = PathBuf::from(format!("/usr/include/{arch}-linux-gnu"));
    if multiarch.is_dir() {
        args.push("-I".into());
        args.push(multiarch.into());
    }
    for program in PROGRAMS {
        let source = format!("programs/{program}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            .clang(&clang)
            .clang_args(&args)
            .reference_obj(true)
            .build_and_generate(out.join(format!("{program}.skel.rs")))
            .with_context(|| {
                format!(
                    "cannot compile {source} with {}: install clang 19 or later and the kernel's \
                     user headers, or set BPF_CLANG",
                    clang.to_string_lossy()
                )
            })?;
        println!("cargo::rerun-if-changed={source}");
    }
    println!("cargo::rerun-if-changed=include");
    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    Ok(())
}

/// `BPF_CLANG`, or the first of the usual names that is in PATH.
fn clang() -> OsString {
    println!("cargo::rerun-if-env-changed=PATH");
    if let Some(named) = env::var_os("BPF_CLANG") {
        return named;
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = |name: &&str| env::split_paths(&path).any(|folder| folder.join(name).is_file());
    let names = ["clang-19", "clang", "clang-20", "clang-21", "clang-18"];
    names
        .iter()
        .find(|name| in_path(name))
        .unwrap_or(&"clang-19")
        .into()
}
